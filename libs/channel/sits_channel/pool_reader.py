"""Reads payloads in place from the pools of other processes."""

import mmap
import os
import threading
from typing import NamedTuple
from weakref import WeakValueDictionary

from sits_channel.pool_files import is_readable, open_file, read_nonce
from sits_channel.pool_slots import Claim, read_claim, within
from sits_core.errors import Unavailable
from sits_protos.v1.common_pb2 import PayloadRef


class StaleReference(Unavailable):
    """The payload is not there any more, or never was: pool gone, slot taken back, bad offset."""

    reason = "STALE_PAYLOAD"


class _Mapping(NamedTuple):
    memory: memoryview
    device: int
    inode: int


class PoolReader:
    """Maps pools of one directory when first named. Safe from any thread.

    Views stay readable whatever becomes of the pool, of its owner or of this reader: the
    memory is unmapped with the last of them.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._mappings: dict[str, _Mapping] = {}
        # Forgotten pools too, as long as somebody has a view and may ask `still_valid`.
        self._alive: WeakValueDictionary[str, mmap.mmap] = WeakValueDictionary()
        self._lock = threading.Lock()

    def view(self, ref: PayloadRef) -> memoryview:
        """The bytes of `ref`, read-only and not copied. Raises `StaleReference`.

        Use them, then ask `still_valid`: the answer counts, not this check.
        """
        memory = self._mapped(ref.pool)
        wrong = _why_not(memory, ref)
        if wrong is not None:
            self.drop_gone()
            raise StaleReference(f"payload in pool '{ref.pool}': {wrong}")
        start = ref.offset + min(ref.skip, ref.length)
        return memory[start : start + min(ref.take or ref.length, ref.offset + ref.length - start)]

    def still_valid(self, ref: PayloadRef) -> bool:
        """Whether what was read so far through `view(ref)` was the payload all the time.

        To be asked while the view is still there.
        """
        memory = self._alive.get(ref.pool)
        return memory is not None and _why_not(memory, ref) is None

    def drop_gone(self) -> int:
        """Forget pools whose file is gone; how many. Happens by itself when a new one is mapped."""
        with self._lock:
            gone = [name for name, mapping in self._mappings.items() if self._gone(name, mapping)]
            for name in gone:
                del self._mappings[name]
            return len(gone)

    def close(self) -> None:
        with self._lock:
            self._mappings.clear()

    def _mapped(self, name: str) -> memoryview:
        mapping = self._mappings.get(name)
        if mapping is None:
            self.drop_gone()
            with self._lock:
                mapping = self._mappings.get(name) or self._map(name)
        return mapping.memory

    def _map(self, name: str) -> _Mapping:
        try:
            fd = open_file(self._directory, name, os.O_RDONLY)
        except OSError as error:
            raise StaleReference(f"cannot open pool '{name}': {error.strerror}") from error
        try:
            return self._map_file(name, fd)
        except OSError as error:
            raise StaleReference(f"cannot map pool '{name}': {error.strerror}") from error
        finally:
            os.close(fd)

    def _map_file(self, name: str, fd: int) -> _Mapping:
        if not is_readable(read_nonce(fd)):
            raise StaleReference(f"'{name}' is not a pool that this release can read")
        found = os.fstat(fd)
        # Exactly what is there: reading past the end of the file would be SIGBUS.
        # An owner never shrinks its file.
        memory = mmap.mmap(fd, found.st_size, access=mmap.ACCESS_READ)
        mapping = _Mapping(memoryview(memory), found.st_dev, found.st_ino)
        self._mappings[name], self._alive[name] = mapping, memory
        return mapping

    def _gone(self, name: str, mapping: _Mapping) -> bool:
        try:
            found = os.stat(os.path.join(self._directory, name), follow_symlinks=False)
        except OSError:
            return True
        return (found.st_dev, found.st_ino) != (mapping.device, mapping.inode)

    def __repr__(self) -> str:
        return f"<PoolReader {self._directory} maps {sorted(self._mappings)}>"


def _why_not(memory: memoryview | mmap.mmap, ref: PayloadRef) -> str | None:
    """None when the slot's header agrees with `ref`."""
    if not within(ref.offset, ref.length, len(memory)):
        return f"no slot at {ref.offset} of {ref.length} bytes in a file of {len(memory)}"
    expected = Claim(ref.offset, ref.length, ref.generation)
    found = read_claim(memory, ref.offset)
    return None if found == expected else f"expected {expected}, slot has {found}"
