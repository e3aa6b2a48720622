"""Load on a mesh whose every answer is checked, for tests that break something meanwhile."""

import threading
from collections import Counter
from typing import Self

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.testing_mesh import ANSWER_S, tensor
from sits_core.testing import wait_until

CLIENTS = 8
OK = "right"
UNAVAILABLE = "StatusCode.UNAVAILABLE"


class Load:
    """Threads that infer without pause, check every answer and count how each one ended."""

    def __init__(
        self, address: str, model: str = "brief", *, clients: int = CLIENTS, elements: int = 4
    ) -> None:
        self._address, self._model, self._elements = address, model, elements
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(clients)]
        self.outcomes: Counter[str] = Counter()
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
        with triton.InferenceServerClient(self._address) as client:
            value = 0
            while not self._stop.is_set():
                value += 1
                self._count(self._one(client, float(number * 1_000_000 + value)))

    def _one(self, client: triton.InferenceServerClient, value: float) -> str:
        data = np.full((1, self._elements), value, np.float32)
        with self._lock:
            self.sent += 1
        try:
            result = client.infer(self._model, [tensor(data)], client_timeout=ANSWER_S)
        except InferenceServerException as error:
            return str(error.status())
        return OK if np.array_equal(result.as_numpy("Y"), data) else "wrong"

    def _count(self, outcome: str) -> None:
        with self._lock:
            self.outcomes[outcome] += 1

    def wait_for_more(self, count: int = 50, timeout_s: float = 15) -> None:
        """Until `count` more requests were answered rightly."""
        goal = self.right + count
        wait_until(lambda: self.right >= goal, timeout_s, f"{count} more right answers")

    def __repr__(self) -> str:
        return f"<Load sent={self.sent} {dict(self.outcomes)}>"
