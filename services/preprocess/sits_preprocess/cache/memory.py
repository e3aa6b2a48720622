"""The first level: answers in this process, bounded in bytes, the longest unused out first."""

import threading
from collections.abc import Callable
from typing import Final, NamedTuple

from cachetools import TLRUCache

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

    @property
    def size_bytes(self) -> int:
        data = sum([len(tensor.data) for tensor in self.outputs])
        return ENTRY_BYTES + TENSOR_BYTES * len(self.outputs) + data


def kept(answer: Answer, made_ns: int, ttl_ns: int, stale_ns: int) -> Kept:
    """A copy: the data of an answer is part of its whole batch's."""
    outputs = tuple([tensor._replace(data=bytes(tensor.data)) for tensor in answer.outputs])
    fresh_until_ns = made_ns + ttl_ns
    return Kept(outputs, answer.parameters, made_ns, fresh_until_ns, fresh_until_ns + stale_ns)


class Memory:
    """Safe from any thread."""

    def __init__(self, max_bytes: int, clock: Callable[[], int] = now_ns) -> None:
        self._answers: TLRUCache[bytes, Kept] = TLRUCache(
            max_bytes, _until_ns, timer=clock, getsizeof=_size
        )
        self._lock = threading.Lock()

    def get(self, digest: bytes) -> Kept | None:
        with self._lock:
            return self._answers.get(digest)

    def put(self, digest: bytes, answer: Kept) -> bool:
        """False when it is larger than all the room there is, or over already."""
        with self._lock:
            if answer.size_bytes > self._answers.maxsize:
                return False
            self._answers[digest] = answer
            return digest in self._answers

    @property
    def size_bytes(self) -> int:
        return int(self._answers.currsize)

    def __len__(self) -> int:
        return len(self._answers)

    def __repr__(self) -> str:
        return f"<Memory {len(self)} answers, {self.size_bytes} of {self._answers.maxsize} bytes>"


def _until_ns(_digest: bytes, answer: Kept, _now: float) -> float:
    return answer.until_ns


def _size(answer: Kept) -> float:
    return answer.size_bytes
