"""The payload pool of one process: the only one that gives out and takes back its slots.

Peers map it read-only (`sits_channel.pool_reader`), so nothing here is shared state
between processes but the bytes themselves.
"""

import mmap
import secrets
import threading
import zlib
from typing import NamedTuple, Self

from sits_channel.pool_files import (
    PAGE_BYTES,
    PoolUnavailable,
    SharedFile,
    create,
    file_name,
)
from sits_channel.pool_pages import FreePages
from sits_channel.pool_slots import (
    SlotHeader,
    data_offset,
    pages_for,
    write_generation,
    write_header,
)
from sits_core.clock import now_ns
from sits_protos.v1.common_pb2 import PayloadRef


class Slot(NamedTuple):
    """Memory to write a payload into, whole, and the reference to send once it is written.

    Bytes that are not written still hold an earlier payload.
    """

    view: memoryview
    ref: PayloadRef


class PoolStats(NamedTuple):
    """`oldest_unix_ns` is when the oldest slot in use was given out, 0 = none: one far older
    than any deadline has leaked. `reclaimed` counts slots whose holder never gave them back.
    """

    capacity_bytes: int
    used_bytes: int
    largest_free_bytes: int
    slots_in_use: int
    oldest_unix_ns: int
    allocations: int
    refusals: int
    stale_releases: int
    reclaimed: int


class _Lent(NamedTuple):
    page: int
    pages: int
    generation: int
    holder: str
    since_unix_ns: int


class PayloadPool:
    """Slots of shared memory for payloads. Safe from any thread; a pool that is not open is full.

    with PayloadPool("/dev/shm", "sits", process_id, 64 << 20) as pool:
        if slot := pool.allocate(len(data), holder=peer_id):
            slot.view[:] = data
    """

    def __init__(
        self, directory: str, deployment: str, process_id: str, capacity_bytes: int
    ) -> None:
        self.name = file_name(deployment, process_id, "pool")
        self.capacity_bytes = max(1, capacity_bytes // PAGE_BYTES) * PAGE_BYTES
        self._directory, self._deployment, self._process_id = directory, deployment, process_id
        self._file: SharedFile | None = None
        self._memory = memoryview(b"")
        self._pages = FreePages(0)
        # Insertion order is order of age.
        self._lent: dict[int, _Lent] = {}
        # From a random start, because a client's tensor could hold any small number where
        # a late reader looks for a generation.
        self._generation = secrets.randbits(62)
        self._allocations = self._refusals = self._stale_releases = self._reclaimed = 0
        self._lock = threading.Lock()

    def open(self) -> Self:
        """Raises `PoolUnavailable` when the memory is not there."""
        file_bytes = PAGE_BYTES + self.capacity_bytes
        file = create(self._directory, self._deployment, self._process_id, "pool", file_bytes)
        try:
            memory = memoryview(mmap.mmap(file.fd, file_bytes))
        except OSError as error:
            file.remove()
            raise PoolUnavailable(f"cannot map {self.name}: {error.strerror}") from error
        with self._lock:
            self._file, self._memory = file, memory
            self._pages = FreePages(self.capacity_bytes // PAGE_BYTES)
        return self

    def close(self) -> None:
        """Remove the file. Views stay good; the memory goes with the last of them."""
        with self._lock:
            file, self._file = self._file, None
            # Dropped and not closed: closing fails while there are views.
            self._memory = memoryview(b"")
            self._pages = FreePages(0)
            self._lent.clear()
        if file is not None:
            file.remove()

    def allocate(
        self,
        length: int,
        holder: str = "",
        *,
        req_id: int = 0,
        tenant: str = "",
        priority: int = 0,
    ) -> Slot | None:
        """A slot of `length` bytes lent to `holder`, None when there is no room: send inline."""
        if length < 0:
            raise ValueError(f"a payload has 0 or more bytes, got {length}")
        with self._lock:
            lent = self._lend(pages_for(length), holder)
            if lent is None:
                self._refusals += 1
                return None
            self._allocations += 1
            header = SlotHeader(
                req_id=req_id,
                offset=data_offset(lent.page),
                length=length,
                generation=lent.generation,
                allocated_unix_ns=lent.since_unix_ns,
                tenant=zlib.crc32(tenant.encode()),
                priority=priority,
                holder=zlib.crc32(holder.encode()),
            )
            write_header(self._memory, header)
            return self._slot(header)

    def release(self, ref: PayloadRef) -> bool:
        """Take a slot back. A reference that is no longer good is counted and changes nothing."""
        with self._lock:
            lent = self._lent.get(ref.offset)
            if lent is None or lent.generation != ref.generation or ref.pool != self.name:
                self._stale_releases += 1
                return False
            self._take_back(ref.offset)
            return True

    def release_all(self, holder: str) -> int:
        """Take back all that `holder`, now dead, was lent; how many slots."""
        with self._lock:
            offsets = [offset for offset, lent in self._lent.items() if lent.holder == holder]
            for offset in offsets:
                self._take_back(offset)
            self._reclaimed += len(offsets)
            return len(offsets)

    def stats(self) -> PoolStats:
        with self._lock:
            oldest = next(iter(self._lent.values()), None)
            return PoolStats(
                capacity_bytes=self._pages.total * PAGE_BYTES,
                used_bytes=(self._pages.total - self._pages.free) * PAGE_BYTES,
                largest_free_bytes=self._pages.largest_run * PAGE_BYTES,
                slots_in_use=len(self._lent),
                oldest_unix_ns=oldest.since_unix_ns if oldest else 0,
                allocations=self._allocations,
                refusals=self._refusals,
                stale_releases=self._stale_releases,
                reclaimed=self._reclaimed,
            )

    def _lend(self, pages: int, holder: str) -> _Lent | None:
        page = self._pages.take(pages)
        if page is None:
            return None
        lent = _Lent(page, pages, self._next_generation(), holder, now_ns())
        self._lent[data_offset(page)] = lent
        return lent

    def _slot(self, header: SlotHeader) -> Slot:
        view = self._memory[header.offset : header.offset + header.length]
        ref = PayloadRef(
            pool=self.name,
            offset=header.offset,
            length=header.length,
            generation=header.generation,
        )
        return Slot(view, ref)

    def _take_back(self, offset: int) -> None:
        lent = self._lent.pop(offset)
        # Before anyone can write there again, so that late readers notice.
        write_generation(self._memory, offset, self._next_generation())
        self._pages.give(lent.page, lent.pages)

    def _next_generation(self) -> int:
        self._generation += 1
        return self._generation

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<PayloadPool {self.name} {len(self._lent)} slots {self._pages!r}>"
