"""The first level: answers in this process, bounded in bytes, the longest unused out first."""

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final, NamedTuple

from cachetools import LRUCache

from sits_core.clock import now_ns
from sits_preprocess.request import Answer, Parameters, TensorData

ENTRY_BYTES: Final = 600
TENSOR_BYTES: Final = 220
"""What an answer takes beside its data, and each of its outputs: key, places in the cache, objects.
571 and 216 with `tracemalloc`, over 5,000 answers of one to four outputs."""


class Kept(NamedTuple):
    """An answer as it was made at `made_ns`, in the order in which it was asked for."""

    outputs: tuple[TensorData, ...]
    parameters: Parameters
    made_ns: int
    fresh_until_ns: int
    until_ns: int
    size_bytes: int


def size_of(outputs: Sequence[TensorData]) -> int:
    data = sum([len(tensor.data) for tensor in outputs])
    return ENTRY_BYTES + TENSOR_BYTES * len(outputs) + data


def kept(answer: Answer, made_ns: int, ttl_ns: int, stale_ns: int) -> Kept:
    """A copy: the data of an answer is part of its whole batch's."""
    outputs = tuple(
        [TensorData(name, kind, shape, bytes(data)) for name, kind, shape, data in answer.outputs]
    )
    return kept_from(outputs, answer.parameters, made_ns, made_ns + ttl_ns, stale_ns)


def kept_from(
    outputs: tuple[TensorData, ...], parameters: Parameters, made_ns: int, fresh_until_ns: int,
    stale_ns: int,
) -> Kept:  # fmt: skip
    until_ns = fresh_until_ns + stale_ns
    return Kept(outputs, parameters, made_ns, fresh_until_ns, until_ns, size_of(outputs))


class Memory:
    """Safe from any thread. What is over goes when it is asked for, or was unused for longest."""

    def __init__(self, max_bytes: int, clock: Callable[[], int] = now_ns) -> None:
        self._answers: LRUCache[bytes, Kept] = LRUCache(max_bytes, attrgetter("size_bytes"))
        self._lock, self._clock = threading.Lock(), clock

    def get(self, digest: bytes) -> Kept | None:
        """One that is not over for ever."""
        with self._lock:
            found = self._answers.get(digest)
            if found is not None and found.until_ns <= self._clock():
                del self._answers[digest]
                return None
            return found

    def put(self, digest: bytes, answer: Kept) -> bool:
        """False when it is larger than all the room there is."""
        if answer.size_bytes > self._answers.maxsize:
            return False
        with self._lock:
            self._answers[digest] = answer
        return True

    @property
    def size_bytes(self) -> int:
        return int(self._answers.currsize)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"<Memory {len(self)} answers, {self.size_bytes} of {self._answers.maxsize} bytes>"
