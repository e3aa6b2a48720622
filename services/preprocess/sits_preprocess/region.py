"""A client's shared-memory file: read and written by descriptor, never mapped, never unlinked.

A mapping of a file that somebody else owns is a trap: when the owner shortens the file, the
next access kills this process with SIGBUS, and between a check and a use the bytes may
change. So bytes are copied out once (`pread`), checked and used from that copy, and results
are written with `pwrite`. Both answer with an error where a mapping would crash. Python's
resource tracker, which unlinks what a process only attached to, is not involved.
"""

import os
import threading
from dataclasses import dataclass, field
from typing import Self

from sits_core.errors import Internal, InvalidArgument


@dataclass(slots=True, eq=False)
class Region:
    """An open file, closed when it is neither registered nor borrowed any more."""

    name: str
    key: str
    offset: int
    byte_size: int
    fd: int
    holders: int = 1
    lock: threading.Lock = field(default_factory=threading.Lock)

    def hold(self) -> None:
        with self.lock:
            self.holders += 1

    def let_go(self) -> None:
        with self.lock:
            self.holders -= 1
            if self.holders == 0:
                os.close(self.fd)


class Borrowed:
    """A range of a region, usable until `release`, whatever is unregistered meanwhile."""

    def __init__(self, region: Region, offset: int, byte_size: int, max_read_bytes: int) -> None:
        self._region, self._offset, self._max_read_bytes = region, offset, max_read_bytes
        self._copy: memoryview | None = None
        self._released = False
        self._lock = threading.Lock()
        self.byte_size = byte_size

    @property
    def view(self) -> memoryview:
        """The bytes as they were at the first use; they do not change afterwards.

        Stays valid after `release`. Raises `InvalidArgument` when the range is larger than
        a request may be, or when the client has shortened the file.
        """
        if self._copy is None:
            self._copy = memoryview(self._read())
        return self._copy

    def write(self, data: bytes | memoryview) -> None:
        """Put a result at the start of the range. Raises `Internal` when it does not fit."""
        size = memoryview(data).nbytes
        if size > self.byte_size:
            raise Internal(
                "shared memory size specified with the request for the output in region "
                f"'{self._region.name}' should be at least {size} bytes, got {self.byte_size}"
            )
        with self._lock:
            self._check_usable()
            self._check_file_size(size)
            try:
                _write_all(self._region.fd, data, self._start)
            except OSError as error:
                raise Internal(
                    f"cannot write to shared memory region '{self._region.name}': {error.strerror}"
                ) from None

    def release(self) -> None:
        """May be called more than once."""
        with self._lock:
            if self._released:
                return
            self._released = True
        self._region.let_go()

    @property
    def _start(self) -> int:
        return self._region.offset + self._offset

    def _read(self) -> bytes:
        if self.byte_size > self._max_read_bytes:
            raise InvalidArgument(
                f"expected at most {self._max_read_bytes} bytes from shared memory region "
                f"'{self._region.name}', got {self.byte_size}"
            )
        with self._lock:
            self._check_usable()
            self._check_file_size(self.byte_size)
            data = _read_all(self._region.fd, self.byte_size, self._start)
        if len(data) < self.byte_size:
            raise self._shrunk(len(data))
        return data

    def _check_usable(self) -> None:
        if self._released:
            raise RuntimeError("borrowed shared memory was used after its release")

    def _check_file_size(self, size: int) -> None:
        """Before any allocation, and so that a write does not make the file grow again."""
        present = os.fstat(self._region.fd).st_size - self._start
        if present < size:
            raise self._shrunk(max(present, 0))

    def _shrunk(self, present: int) -> InvalidArgument:
        return InvalidArgument(
            f"shared memory region '{self._region.name}' has been shortened since it was "
            f"registered: expected {self.byte_size} bytes at offset {self._offset}, got {present}"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.release()

    def __repr__(self) -> str:
        state = "released" if self._released else "held"
        return f"<Borrowed {self._region.name} {self._offset}+{self.byte_size} {state}>"


def _read_all(fd: int, size: int, offset: int) -> bytes:
    """Up to `size` bytes; fewer at the end of the file. One call reads at most 2 GiB."""
    chunks: list[bytes] = []
    while size > 0 and (chunk := os.pread(fd, size, offset)):
        chunks.append(chunk)
        size, offset = size - len(chunk), offset + len(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _write_all(fd: int, data: bytes | memoryview, offset: int) -> None:
    rest = memoryview(data)
    if rest.nbytes:
        rest = rest.cast("B")
    while rest.nbytes:
        written = os.pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written
