"""Answers of models that front doors keep for each other in Redis. `sits_core.registry` lists
the keys."""

from collections.abc import Sequence
from typing import cast

from google.protobuf.message import DecodeError
from prometheus_client import CollectorRegistry, Counter
from redis import Redis

from sits_core.redis_server import RedisServer
from sits_core.settings import Settings
from sits_protos.v1.registry_pb2 import CachedAnswer


class RedisAnswers:
    """An `AnswerStore`, safe from any thread."""

    def __init__(self, server: RedisServer, prefix: str, metrics: CollectorRegistry) -> None:
        self._server, self._prefix = server, f"{{{prefix}}}:answer:"
        self._unreadable = Counter(
            "sits_redis_unreadable_records_total",
            "Records in Redis that were skipped because they made no sense, by kind",
            ["kind"],
            registry=metrics,
        )

    def read(self, digests: Sequence[bytes]) -> list[CachedAnswer | None]:
        keys = [self._key(digest) for digest in digests]
        found = self._server.call(
            "read_answer", lambda client: cast("list[bytes | None]", client.mget(keys))
        )
        return [self._parsed(*pair) for pair in zip(digests, found, strict=True)]

    def write(self, answers: Sequence[tuple[CachedAnswer, int]]) -> None:
        records = [
            (self._key(answer.digest), answer.SerializeToString(), ttl_ms)
            for answer, ttl_ms in answers
        ]

        def use(client: Redis) -> None:
            with client.pipeline(transaction=False) as writing:
                for key, record, ttl_ms in records:
                    writing.set(key, record, px=ttl_ms)
                writing.execute()

        self._server.call("write_answer", use)

    def close(self) -> None:
        self._server.close()

    def _key(self, digest: bytes) -> str:
        return self._prefix + digest.hex()

    def _parsed(self, digest: bytes, data: bytes | None) -> CachedAnswer | None:
        if data is None:
            return None
        try:
            answer = CachedAnswer.FromString(data)
        except DecodeError:
            answer = None
        if answer is None or answer.digest != digest:
            self._unreadable.labels("answer").inc()
            return None
        return answer

    def __repr__(self) -> str:
        return f"<RedisAnswers {self._prefix}* at {self._server!r}>"


def connect_answers(settings: Settings, metrics: CollectorRegistry) -> RedisAnswers | None:
    """Those in the Redis that SITS_REDIS_URL names; None without one. Does not connect. Raises
    `SettingsError` for a wrong setting."""
    if not settings.secret("redis_url"):
        return None
    return RedisAnswers(RedisServer(settings, metrics), settings.redis_prefix, metrics)
