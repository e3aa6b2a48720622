"""The Triton server behind this executor: what is asked of it, in our types and our errors."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import grpc
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_core.errors import (
    DeadlineExceeded,
    Internal,
    InvalidArgument,
    NotFound,
    ResourceExhausted,
    SitsError,
    Unimplemented,
)
from sits_executor.backends.base import Unserved
from sits_protos.oip.model_config_pb2 import ModelConfig

T = TypeVar("T")

ASK_S: Final = 5.0
"""For what needs no model to run."""
LOAD_S: Final = 600.0
MAX_MESSAGE_BYTES: Final = 2**31 - 1
READY: Final = "READY"

_ERRORS: Final[Mapping[str, type[SitsError]]] = {
    "StatusCode.INVALID_ARGUMENT": InvalidArgument,
    "StatusCode.NOT_FOUND": NotFound,
    "StatusCode.DEADLINE_EXCEEDED": DeadlineExceeded,
    "StatusCode.RESOURCE_EXHAUSTED": ResourceExhausted,
    "StatusCode.UNIMPLEMENTED": Unimplemented,
}


class Indexed(NamedTuple):
    """One line of the server's repository index. `version` empty = never loaded."""

    name: str
    version: str
    ready: bool
    reason: str


class Counted(NamedTuple):
    """What Triton counted of one version since it was loaded; times are sums in seconds."""

    inferences: int
    executions: int
    failures: int
    queue_s: float
    compute_s: float


class TritonServer:
    """One connection, used from many threads. Every call raises `Unserved` while the server
    cannot be reached, and otherwise the `SitsError` that says what it answered."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.url, self._timeout_s = url, timeout_s
        options = [
            ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
            ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
            # It may be away for long; it should be found soon when it is back.
            ("grpc.max_reconnect_backoff_ms", 1000),
        ]
        self._client = triton.InferenceServerClient(url, channel_args=options)

    def __repr__(self) -> str:
        return f"<TritonServer {self.url}>"

    def close(self) -> None:
        self._client.close()

    def index(self) -> list[Indexed]:
        answer = _asked(lambda: self._client.get_model_repository_index(client_timeout=ASK_S))
        return [Indexed(m.name, m.version, m.state == READY, m.reason) for m in answer.models]

    def config(self, name: str, version: str) -> ModelConfig:
        """As Triton completed it. Its package has messages of its own with the same layout."""
        answer = _asked(lambda: self._client.get_model_config(name, version, client_timeout=ASK_S))
        return ModelConfig.FromString(answer.config.SerializeToString())

    def statistics(self) -> dict[tuple[str, str], Counted]:
        answer = _asked(lambda: self._client.get_inference_statistics(client_timeout=ASK_S))
        return {(each.name, each.version): _counted(each) for each in answer.model_stats}

    def load(self, name: str, config_json: str, files: Mapping[str, bytes]) -> None:
        """Files go as Triton wants them: `file:<version>/<name>`."""
        config = config_json or (json.dumps({"name": name}) if files else None)
        sent = {f"file:{path}": content for path, content in files.items()} or None
        _asked(
            lambda: self._client.load_model(name, config=config, files=sent, client_timeout=LOAD_S)
        )

    def unload(self, name: str, *, with_steps: bool) -> None:
        _asked(
            lambda: self._client.unload_model(
                name, unload_dependents=with_steps, client_timeout=LOAD_S
            )
        )

    def infer(
        self, name: str, version: str, inputs: list[Any], outputs: list[Any],
        parameters: Mapping[str, bool | int | str | float],
    ) -> Any:  # fmt: skip
        """An `InferResult` of tritonclient."""
        return _asked(
            lambda: self._client.infer(
                name, inputs, version, outputs,
                client_timeout=self._timeout_s, parameters=dict(parameters) or None,
            )
        )  # fmt: skip

    def share(self, region: str, key: str, size_bytes: int) -> None:
        """Let the server read and write our shared memory. Raises when it may not."""
        _asked(
            lambda: self._client.register_system_shared_memory(
                region, key, size_bytes, client_timeout=ASK_S
            )
        )

    def unshare(self, region: str) -> None:
        _asked(lambda: self._client.unregister_system_shared_memory(region, client_timeout=ASK_S))


def _asked(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except InferenceServerException as error:
        raise translated(error) from error
    except (grpc.RpcError, OSError, ValueError) as error:  # ValueError: the channel is closed
        raise Unserved(f"the Triton server failed: {type(error).__name__}") from error


def translated(error: InferenceServerException) -> SitsError:
    """Triton's status as ours. Its text is for the caller where it is about the request."""
    status, text = error.status(), error.message() or "no reason was given"
    if status in ("StatusCode.UNAVAILABLE", "StatusCode.CANCELLED", None):
        return Unserved(f"the Triton server does not serve this now: {text}")
    return _ERRORS.get(status, Internal)(f"Triton: {text}")


def _counted(each: Any) -> Counted:
    stats = each.inference_stats
    compute_ns = stats.compute_input.ns + stats.compute_infer.ns + stats.compute_output.ns
    return Counted(
        each.inference_count, each.execution_count, stats.fail.count, stats.queue.ns / 1e9,
        compute_ns / 1e9,
    )  # fmt: skip
