"""What batching does: the same wide network with and without it, answers checked."""

import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from tritonclient import grpc as triton

from sits_cli.front import Client, Message

BATCHED, UNBATCHED = "mlp", "mlp_unbatched"
IN_FLIGHT = 64
WARM_S, MEASURE_S = 0.5, 3.0
INPUT_ROWS, WIDTH = 64, 256
TOLERANCE = 1e-3
"""Sums in another order differ in the last digits of 32-bit floats."""


@dataclass(frozen=True, slots=True)
class Load:
    """`rows_per_run` is how many requests shared one run of the model, on average."""

    model: str
    per_s: float
    answered: int
    failed: int
    wrong: int
    rows_per_run: float


@dataclass(frozen=True, slots=True)
class Throughput:
    batched: Load
    unbatched: Load

    @property
    def ratio(self) -> float:
        return self.batched.per_s / self.unbatched.per_s if self.unbatched.per_s else 0.0

    @property
    def right(self) -> bool:
        """Answers only: how fast it is depends on the machine."""
        loads = (self.batched, self.unbatched)
        return all(load.answered and not load.failed and not load.wrong for load in loads)


def run(client: Client, repository: Path) -> Throughput:
    inputs = np.random.default_rng(1).standard_normal((INPUT_ROWS, WIDTH), np.float32)
    expected = reference(repository / BATCHED / "1" / "model.onnx", inputs)
    loads = [measure(client, model, inputs, expected) for model in (UNBATCHED, BATCHED)]
    return Throughput(batched=loads[1], unbatched=loads[0])


def reference(file: Path, rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """The network once more, by numpy alone."""
    weights = [numpy_helper.to_array(weight) for weight in onnx.load(str(file)).graph.initializer]
    for weight in weights[:-1]:
        rows = np.maximum(rows @ weight, 0)
    return rows @ weights[-1]  # type: ignore[no-any-return]


def measure(
    client: Client, model: str, inputs: NDArray[np.float32], expected: NDArray[np.float32]
) -> Load:
    """Keeps `IN_FLIGHT` requests of one row under way for a while."""
    Loop(client, model, inputs, expected).run(WARM_S)
    before = _counts(client, model)
    loop = Loop(client, model, inputs, expected)
    took_s = loop.run(MEASURE_S)
    rows, runs = (after - was for after, was in zip(_counts(client, model), before, strict=True))
    return Load(
        model, loop.answered / took_s, loop.answered, loop.failed, loop.wrong,
        rows / runs if runs else 0.0,
    )  # fmt: skip


@dataclass(slots=True)
class Loop:
    """Answers are kept and checked afterwards, so that checking costs no throughput."""

    client: Client
    model: str
    inputs: NDArray[np.float32]
    expected: NDArray[np.float32]
    failed: int = 0
    _answers: list[tuple[int, Message]] = field(default_factory=list)
    _slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(IN_FLIGHT))

    def run(self, seconds: float) -> float:
        """Seconds until the last answer."""
        requests = [self._request(row) for row in self.inputs]
        start_s = time.monotonic()
        for number in range(1 << 31):
            if time.monotonic() > start_s + seconds:
                break
            self._slots.acquire()
            self._send(number % len(requests), requests[number % len(requests)])
        for _ in range(IN_FLIGHT):
            self._slots.acquire()
        return time.monotonic() - start_s

    @property
    def answered(self) -> int:
        return len(self._answers)

    @property
    def wrong(self) -> int:
        return sum(not self._fits(index, result) for index, result in self._answers)

    def _request(self, row: NDArray[np.float32]) -> triton.InferInput:
        tensor = triton.InferInput("INPUT", [1, WIDTH], "FP32")
        tensor.set_data_from_numpy(row[np.newaxis])
        return tensor

    def _send(self, index: int, tensor: triton.InferInput) -> None:
        def done(result: Message, error: Exception | None) -> None:
            if error is None:
                self._answers.append((index, result))
            else:
                self.failed += 1
            self._slots.release()

        self.client.async_infer(self.model, [tensor], done)

    def _fits(self, index: int, result: Message) -> bool:
        answer = result.as_numpy("OUTPUT")[0]
        return bool(np.allclose(answer, self.expected[index], TOLERANCE, TOLERANCE))


def _counts(client: Client, model: str) -> tuple[int, int]:
    """(requests, runs of the model) so far."""
    statistics = client.get_inference_statistics(model).model_stats[0]
    return statistics.inference_count, statistics.execution_count
