"""Load on a mesh whose every answer is checked, for tests that break something meanwhile."""

import json
import threading
from collections import Counter
from collections.abc import Sequence
from queue import Queue
from typing import Any, Self

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.testing_mesh import ANSWER_S, Array, tensor
from sits_core.testing import wait_until

CLIENTS = 8
OK = "right"
UNAVAILABLE = "StatusCode.UNAVAILABLE"


Answer = tuple[triton.InferResult, InferenceServerException | None]
SERVICE = "inference.GRPCInferenceService"
BALANCED = {
    "loadBalancingConfig": [{"round_robin": {}}],
    "healthCheckConfig": {"serviceName": SERVICE},
    "methodConfig": [
        {
            "name": [{"service": SERVICE, "method": "ModelInfer"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.05s",
                "maxBackoff": "1s",
                "backoffMultiplier": 2,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
}
"""What a client of several front doors is told: docs/operations.md has it for users."""


def balanced(addresses: Sequence[str]) -> triton.InferenceServerClient:
    """A stock client that spreads its requests over front doors and tries again elsewhere."""
    options = [
        ("grpc.service_config", json.dumps(BALANCED)),
        # Else gRPC sends the list as the name of the host, which strict HTTP/2 servers refuse.
        ("grpc.default_authority", "sits"),
    ]
    return triton.InferenceServerClient("ipv4:" + ",".join(addresses), channel_args=options)


class Load:
    """Threads that infer, check every answer and count how each one ended. Of several
    addresses, separated by commas, they use all. They wait `pause_s` between two requests."""

    def __init__(
        self,
        address: str,
        model: str = "brief",
        *,
        clients: int = CLIENTS,
        elements: int = 4,
        pause_s: float = 0.0,
    ) -> None:
        self._addresses, self._pause_s = address.split(","), pause_s
        self._model, self._elements = model, elements
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]
        self.outcomes: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()
        self.sent = 0

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(2 * ANSWER_S)

    @property
    def answered(self) -> int:
        return sum(self.outcomes.values())

    @property
    def right(self) -> int:
        return self.outcomes[OK]

    @property
    def all_right(self) -> bool:
        """Every request sent was answered, and rightly."""
        return self.sent == self.answered == self.right > 0

    def _run(self, number: int) -> None:
        with self._client() as client:
            value = 0
            while not self._stop.wait(self._pause_s):
                value += 1
                self._count(self._one(client, float(number * 1_000_000 + value)))

    def _client(self) -> triton.InferenceServerClient:
        if len(self._addresses) > 1:
            return balanced(self._addresses)
        return triton.InferenceServerClient(self._addresses[0])

    def _one(self, client: triton.InferenceServerClient, value: float) -> str:
        data = np.full((1, self._elements), value, np.float32)
        with self._lock:
            self.sent += 1
        try:
            result = self._ask(client, data)
        except InferenceServerException as error:
            with self._lock:
                self.errors[error.message()] += 1
            return str(error.status())
        return OK if np.array_equal(result.as_numpy("Y"), data) else "wrong"

    def _ask(self, client: triton.InferenceServerClient, data: Array) -> triton.InferResult:
        return client.infer(self._model, [tensor(data)], client_timeout=ANSWER_S)

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1

    def wait_for_more(self, count: int = 50, timeout_s: float = 15) -> None:
        """Until `count` more requests were answered rightly."""
        goal = self.right + count
        wait_until(lambda: self.right >= goal, timeout_s, f"{count} more right answers")

    def __repr__(self) -> str:
        return f"<Load sent={self.sent} {dict(self.outcomes)} {dict(self.errors)}>"


class StreamLoad(Load):
    """As `Load`, each client on a stream of its own. One that ends with UNAVAILABLE, which says
    that nothing unanswered was done, is opened anew and the request sent again."""

    TRIES = 10
    RETRY_S = 0.1

    def __init__(self, address: str, model: str = "brief", **more: Any) -> None:
        super().__init__(address, model, **more)
        self._streams: dict[triton.InferenceServerClient, Queue[Answer]] = {}
        self.ended = 0

    def _ask(self, client: triton.InferenceServerClient, data: Array) -> triton.InferResult:
        for _ in range(self.TRIES):
            try:
                return self._on_stream(client, data)
            except InferenceServerException as error:
                if str(error.status()) not in (UNAVAILABLE, "None"):
                    raise
                ending = error
            self.ended += 1
            client.stop_stream()
            del self._streams[client]
            self._stop.wait(self.RETRY_S)
        raise ending

    def _on_stream(self, client: triton.InferenceServerClient, data: Array) -> triton.InferResult:
        if client not in self._streams:
            answers = self._streams[client] = Queue()
            client.start_stream(lambda result, error: answers.put((result, error)))
        client.async_stream_infer(self._model, [tensor(data)])
        result, error = self._streams[client].get(timeout=ANSWER_S)
        if error is not None:
            raise error
        return result
