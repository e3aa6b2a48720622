"""Files in shared memory: made whole or not at all, owned by a lock, removed with their owner.

Ownership is an OFD lock on the file. The kernel drops it when its process dies, however
that happens, so neither a pid nor a heartbeat has to be believed.
"""

import contextlib
import errno
import fcntl
import os
import re
import secrets
import stat
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

PAGE_BYTES: Final = 4096

_MAGIC = b"SITSPOOL"
_LAYOUT = 1
"""Of the file and of its slots; a process reads only files of its own layout."""
_HEADER = struct.Struct("@8sI64s16s")
_DEPLOYMENT = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_PROCESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
_NAME = re.compile(r"sits-[A-Za-z0-9][A-Za-z0-9._-]{0,200}\.(pool|probe|ring)")
_WHOLE_FILE = struct.pack("@hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


class PoolUnavailable(Exception):
    """Shared memory cannot be had here; the text says how much was wanted, where, and why not."""


class _FileHeader(NamedTuple):
    layout: int
    deployment: str


@dataclass(frozen=True, slots=True)
class SharedFile:
    """A file of this process, locked until `remove` or until the process ends.

    `nonce` is its first bytes, unlike those of any other file. A forked child shares the
    lock: the file then counts as live until both are gone.
    """

    directory: str
    name: str
    nonce: bytes
    fd: int

    def remove(self) -> None:
        # Unlinked while still locked, so that nobody takes it for an orphan meanwhile.
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.directory, self.name))
        os.close(self.fd)


def file_name(deployment: str, process_id: str, kind: str) -> str:
    """`sits-<deployment>-<process id>.<kind>`; kind is `pool`, `probe` or `ring`."""
    for text, pattern in ((deployment, _DEPLOYMENT), (process_id, _PROCESS)):
        if not pattern.fullmatch(text):
            raise ValueError(f"'{text}' cannot be part of a file name: expected {pattern.pattern}")
    return f"sits-{deployment}-{process_id}.{kind}"


def create(
    directory: str, deployment: str, process_id: str, kind: str, size_bytes: int
) -> SharedFile:
    """A new file of ours with all its memory behind it. Raises `PoolUnavailable`.

    It has no name until it is locked and complete: a process killed at any instruction
    leaves either nothing or a whole file without a lock.
    """
    name = file_name(deployment, process_id, kind)
    nonce = _HEADER.pack(_MAGIC, _LAYOUT, deployment.encode(), secrets.token_bytes(16))
    try:
        fd = os.open(directory, os.O_TMPFILE | os.O_RDWR, 0o600)
        with _closed_on_error(fd):
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
            # Pages that exist now cannot be missing later, when it would mean SIGBUS.
            os.posix_fallocate(fd, 0, size_bytes)
            os.pwrite(fd, nonce, 0)
            # Only a process id that is used a second time finds its name taken.
            _remove_if_orphan(directory, name, deployment)
            _publish(fd, directory, name)
    except OSError as error:
        raise PoolUnavailable(
            f"no {name} of {size_bytes} bytes in {directory}: {error.strerror}"
        ) from error
    return SharedFile(directory, name, nonce, fd)


def remove_orphans(directory: str, deployment: str) -> int:
    """Remove what dead processes of `deployment` left; how many files. Raises `PoolUnavailable`.

    Never touches a live process's file or another deployment's. Any number of processes
    may do this at once.
    """
    try:
        names = os.listdir(directory)
    except OSError as error:
        raise PoolUnavailable(f"cannot list {directory}: {error.strerror}") from error
    return sum(_remove_if_orphan(directory, name, deployment) for name in names)


def free_bytes(directory: str) -> int | None:
    """What the file system still has; None when it sets no limit. Raises `PoolUnavailable`."""
    try:
        found = os.statvfs(directory)
    except OSError as error:
        raise PoolUnavailable(f"cannot use {directory}: {error.strerror}") from error
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def open_file(directory: str, name: str, flags: int) -> int:
    """A descriptor of the regular file `name`, which may come from a peer. Raises `OSError`."""
    if not _NAME.fullmatch(name):
        raise FileNotFoundError(errno.ENOENT, f"expected a name like {_NAME.pattern}", name)
    # A peer must not make us wait for a FIFO's writer, nor follow a link out of the directory.
    fd = os.open(os.path.join(directory, name), flags | os.O_NOFOLLOW | os.O_NONBLOCK)
    with _closed_on_error(fd):
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise FileNotFoundError(errno.ENOENT, "expected a regular file", name)
    return fd


def read_nonce(fd: int) -> bytes:
    return os.pread(fd, _HEADER.size, 0)


def is_readable(nonce: bytes) -> bool:
    """Whether a file that starts so has the layout of this release."""
    header = _parse(nonce)
    return header is not None and header.layout == _LAYOUT


def _publish(fd: int, directory: str, name: str) -> None:
    directory_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        # Only linkat follows /proc/self/fd; Python calls it when given a directory descriptor.
        os.link(f"/proc/self/fd/{fd}", name, dst_dir_fd=directory_fd)
    finally:
        os.close(directory_fd)


def _remove_if_orphan(directory: str, name: str, deployment: str) -> bool:
    if not name.startswith(f"sits-{deployment}-"):
        return False
    try:
        fd = open_file(directory, name, os.O_RDWR)
    except OSError:
        return False  # just removed, not a file, or another user's
    try:
        return _of_deployment(fd, deployment) and _unlink_unlocked(fd, directory, name)
    finally:
        os.close(fd)


def _of_deployment(fd: int, deployment: str) -> bool:
    """The name cannot tell: "a-b" is deployment a's process b… or deployment a-b's.

    Layouts of other releases count, or an upgrade would leave their files for ever.
    """
    header = _parse(read_nonce(fd))
    return header is not None and header.deployment == deployment


def _unlink_unlocked(fd: int, directory: str, name: str) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _WHOLE_FILE)
        # A name is unlinked only by who holds the lock, so as long as this file has one,
        # `name` means this file and not a newer one.
        if os.fstat(fd).st_nlink == 0:
            return False
        os.unlink(os.path.join(directory, name))
    except OSError:
        return False  # its owner lives, or we may not remove it: no reason not to start
    return True


def _parse(nonce: bytes) -> _FileHeader | None:
    if len(nonce) != _HEADER.size or not nonce.startswith(_MAGIC):
        return None
    _, layout, deployment, _ = _HEADER.unpack(nonce)
    return _FileHeader(layout, deployment.rstrip(b"\0").decode("ascii", "replace"))


@contextlib.contextmanager
def _closed_on_error(fd: int) -> Iterator[None]:
    try:
        yield
    except BaseException:
        os.close(fd)
        raise
