"""Triton's repository layout on disk. Nothing outside the repository is ever opened."""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sits_core.errors import InvalidArgument, NotFound
from sits_executor.backends.base import LoadError

CONFIG_FILE: Final = "config.pbtxt"
MAX_TEXT_BYTES: Final = 16 << 20
"""Configurations and label files are read whole."""

_NAME = re.compile(r"[A-Za-z0-9_][\w.+@ -]{0,254}", re.ASCII)
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
_PICKLED = {".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".npy", ".npz"}


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model's folder. `root` is the folder that no path may leave."""

    name: str
    path: Path
    root: Path

    def versions(self) -> tuple[int, ...]:
        """Numbers of the version folders, oldest first. Other folders are ignored."""
        names = (entry.name for entry in self.path.iterdir() if entry.is_dir())
        return tuple(sorted(int(name) for name in names if _VERSION.fullmatch(name)))

    def file(self, relative: str) -> Path:
        """A file of this model. Raises `LoadError` when it is missing or outside the repository."""
        check_relative(relative)
        try:
            found = (self.path / relative).resolve(strict=True)
        except (OSError, RuntimeError):
            raise LoadError(f"there is no file '{relative}' in the model's folder") from None
        if not found.is_relative_to(self.root):
            raise LoadError(f"'{relative}' is a link that leads out of the model repository")
        return found

    def has(self, relative: str) -> bool:
        check_relative(relative)
        return (self.path / relative).exists()

    def text(self, relative: str) -> str:
        path = self.file(relative)
        if path.stat().st_size > MAX_TEXT_BYTES:
            raise LoadError(f"'{relative}' is larger than {MAX_TEXT_BYTES} bytes")
        try:
            return path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            raise LoadError(f"'{relative}' is not UTF-8 text") from None


class Repository:
    """A folder of model folders."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()

    def names(self) -> list[str]:
        """Models there are, loadable or not. Hidden folders are none. No folder = no models."""
        try:
            entries = sorted(self._root.iterdir())
        except OSError:
            return []
        return [e.name for e in entries if e.is_dir() and _NAME.fullmatch(e.name)]

    def folder(self, name: str) -> ModelFolder:
        """Raises `InvalidArgument` for what cannot be a name, `NotFound` when there is none."""
        check_name(name)
        path = self._root / name
        if not path.is_dir():
            raise NotFound(f"model '{name}' is not in the model repository")
        if not path.resolve().is_relative_to(self._root):
            raise InvalidArgument(f"folder of model '{name}' leads out of the model repository")
        return ModelFolder(name, path.resolve(), self._root)


def check_name(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"invalid model name '{name[:100]}': expected up to 255 letters, digits, "
            "'_', '-', '.', '+', '@' or spaces, starting with a letter, a digit or '_'"
        )


def check_relative(path: str) -> None:
    """Raises `LoadError` unless `path` stays inside the folder it is relative to."""
    parts = path.split("/")
    if not path or path.startswith("/") or "\\" in path or not path.isprintable():
        raise LoadError(f"invalid file path '{path[:100]}': expected a relative path")
    if any(part in ("", ".", "..") for part in parts):
        raise LoadError(f"invalid file path '{path[:100]}': '.', '..' and '' are not allowed in it")


def refuse_pickled(filename: str, opened: Collection[str] = ()) -> None:
    """Formats that can hold pickled objects run any code when they are opened. `opened` are
    suffixes of which a backend reads what holds none, and refuses the others itself."""
    suffix = Path(filename).suffix.lower()
    if suffix in _PICKLED and suffix not in opened:
        raise LoadError(
            f"'{filename}' is not opened: {suffix} files may hold pickled objects, which can "
            "run any code; export the model to ONNX"
        )
