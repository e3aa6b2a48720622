"""Folders in the system's temporary directory that outlive nobody, not even who was killed."""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path


class Scratch:
    """A folder `sits-NAME-…` that only this user can read, with a lock on it until `remove`, or
    until the process ends, however it does. Making one removes those of that name that nobody
    holds: who was killed could not.
    """

    def __init__(self, name: str) -> None:
        prefix = f"sits-{name}-"
        _sweep(prefix)
        self.path, self._lock = _made(prefix)

    def remove(self) -> None:
        """Twice is fine."""
        if self._lock is not None:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = None

    def __repr__(self) -> str:
        return f"<Scratch {self.path}>"


def _made(prefix: str) -> tuple[Path, int | None]:
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix))
        lock = _lock(path)
        # Until it was locked, somebody else could take it for a leftover.
        if lock is not None and path.exists():
            return path, lock
        if lock is not None:
            os.close(lock)


def _sweep(prefix: str) -> None:
    for path in Path(tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # another user's, or just removed
            if (lock := _lock(path)) is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(path: Path) -> int | None:
    """None when somebody holds it, or it is gone."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return None
    return file
