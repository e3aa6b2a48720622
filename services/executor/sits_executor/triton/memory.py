"""Large inputs through system shared memory, where the Triton server runs on this host."""

import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final, NamedTuple

import structlog
from tritonclient.utils import shared_memory

from sits_core.datatypes import Array
from sits_core.errors import SitsError
from sits_executor.triton.server import TritonServer

log = structlog.get_logger()

FROM_BYTES: Final = 64 << 10
"""Smaller inputs cost less in the message than a region does."""
_ALIGN: Final = 64


class Place(NamedTuple):
    """Where an input lies."""

    region: str
    size_bytes: int
    offset: int


class _Region(NamedTuple):
    name: str
    handle: Any
    size_bytes: int


class SharedInputs:
    """A region for each run that is under way, kept for the next one; grown when one needs more.

    `on` False, or a server that may not (`--allow-client-shm`): everything goes in the message.
    BYTES do so anyway, since their length is not that of the array.
    """

    def __init__(self, server: TritonServer, *, on: bool) -> None:
        self._server, self._on = server, on
        self._free: list[_Region] = []
        self._age = 0
        self._lock = threading.Lock()

    @contextmanager
    def of(self, inputs: Mapping[str, Array]) -> Iterator[dict[str, Place]]:
        """The inputs that are in a region until the end of the block."""
        large = {n: a for n, a in inputs.items() if _is_large(a)} if self._on else {}
        region = self._take(sum(_room(array) for array in large.values())) if large else None
        if region is None:
            yield {}
            return
        age = self._age
        try:
            yield _written(region, large)
        finally:
            self._back(region, age)

    def forget(self) -> None:
        """The server was started anew and knows no region any more."""
        with self._lock:
            self._age += 1
            regions, self._free = self._free, []
        for region in regions:
            self._drop(region)

    def close(self) -> None:
        with self._lock:
            regions, self._free = self._free, []
        for region in regions:
            self._drop(region)

    def _back(self, region: _Region, age: int) -> None:
        with self._lock:
            current = age == self._age
            if current:
                self._free.append(region)
        if not current:
            self._drop(region)

    def _take(self, size_bytes: int) -> _Region | None:
        with self._lock:
            fitting = [region for region in self._free if region.size_bytes >= size_bytes]
            if fitting:
                self._free.remove(fitting[0])
                return fitting[0]
            small = self._free.pop() if self._free else None
        if small is not None:
            self._drop(small)
        return self._made(size_bytes)

    def _made(self, size_bytes: int) -> _Region | None:
        name = f"sits-{secrets.token_hex(8)}"
        try:
            handle = shared_memory.create_shared_memory_region(name, f"/{name}", size_bytes)
        except (shared_memory.SharedMemoryException, OSError, ValueError) as error:
            self._give_up(str(error))
            return None
        try:
            self._server.share(name, f"/{name}", size_bytes)
        except SitsError as error:
            shared_memory.destroy_shared_memory_region(handle)
            self._give_up(error.message)
            return None
        return _Region(name, handle, size_bytes)

    def _give_up(self, cause: str) -> None:
        self._on = False
        log.info("triton.no_shared_memory", server=self._server.url, cause=cause)

    def _drop(self, region: _Region) -> None:
        with suppress(SitsError):
            self._server.unshare(region.name)
        shared_memory.destroy_shared_memory_region(region.handle)


def _is_large(array: Array) -> bool:
    return array.dtype != object and array.nbytes >= FROM_BYTES


def _room(array: Array) -> int:
    return -(-array.nbytes // _ALIGN) * _ALIGN


def _written(region: _Region, inputs: Mapping[str, Array]) -> dict[str, Place]:
    places, offset = {}, 0
    for name, array in inputs.items():
        shared_memory.set_shared_memory_region(region.handle, [array], offset)
        places[name] = Place(region.name, array.nbytes, offset)
        offset += _room(array)
    return places
