"""Answers that front doors keep for each other on a real server."""

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
import redis
from prometheus_client import CollectorRegistry

from sits_cli.private_redis import PrivateRedis
from sits_core.redis_answers import RedisAnswers, connect_answers
from sits_core.registry import RegistryUnavailable
from sits_core.settings import Settings
from sits_protos.v1.registry_pb2 import CachedAnswer

pytestmark = pytest.mark.redis

ONE, TWO = b"1" * 16, b"2" * 16


@pytest.fixture
def metrics() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def answers(redis_server: PrivateRedis, metrics: CollectorRegistry) -> Iterator[RedisAnswers]:
    found = connect_answers(Settings(redis_url=redis_server.url), metrics)
    assert found is not None
    with closing(found):
        yield found


@pytest.fixture
def raw(redis_server: PrivateRedis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


def unreadable(metrics: CollectorRegistry) -> float:
    name = "sits_redis_unreadable_records_total"
    return metrics.get_sample_value(name, {"kind": "answer"}) or 0.0


def test_what_is_written_is_read_and_the_rest_is_not_there(answers: RedisAnswers) -> None:
    answer = CachedAnswer(digest=ONE, made_unix_ns=7)
    answer.outputs.add(name="y", datatype="FP32", shape=[1], inline=b"abcd")
    answers.write([(answer, 60_000)])
    assert answers.read([TWO, ONE]) == [None, answer]


def test_every_answer_has_its_own_ttl(answers: RedisAnswers, raw: redis.Redis) -> None:
    answers.write([(CachedAnswer(digest=ONE), 60_000), (CachedAnswer(digest=TWO), 5_000)])
    left = [raw.pttl(f"{{sits}}:answer:{digest.hex()}") for digest in (ONE, TWO)]
    assert 55_000 < left[0] <= 60_000
    assert 0 < left[1] <= 5_000


def test_what_cannot_be_read_or_lies_at_anothers_key_is_counted_and_skipped(
    answers: RedisAnswers, raw: redis.Redis, metrics: CollectorRegistry
) -> None:
    raw.set(f"{{sits}}:answer:{ONE.hex()}", b"\xff rubbish")
    raw.set(f"{{sits}}:answer:{TWO.hex()}", CachedAnswer(digest=ONE).SerializeToString())
    assert answers.read([ONE, TWO]) == [None, None]
    assert unreadable(metrics) == 2


def test_without_the_server_it_says_so(answers: RedisAnswers, redis_server: PrivateRedis) -> None:
    redis_server.kill()
    with pytest.raises(RegistryUnavailable):
        answers.read([ONE])
    with pytest.raises(RegistryUnavailable):
        answers.write([(CachedAnswer(digest=ONE), 1000)])


def test_without_an_address_there_is_none(
    metrics: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SITS_REDIS_URL", raising=False)
    assert connect_answers(Settings(), metrics) is None


def test_the_rights_that_the_documentation_gives_are_enough(
    start_redis: Callable[..., PrivateRedis], metrics: CollectorRegistry
) -> None:
    rights = (
        "user mesh on >secret resetkeys ~{sits}:* resetchannels &{sits}:changes -@all +ping "
        "+get +set +mget"
    )
    server = start_redis(config=[rights])
    found = connect_answers(
        Settings(redis_url=server.url.replace("unix://", "unix://mesh:secret@")), metrics
    )
    assert found is not None
    with closing(found):
        found.write([(CachedAnswer(digest=ONE), 1000)])
        assert found.read([ONE]) == [CachedAnswer(digest=ONE)]
