"""What a version was loaded from, as a digest: equal contents give equal answers, on any host.

Only for models with `response_cache`: reading all files once more costs about a second a
gigabyte. Files are read after the load; a version whose files changed meanwhile has no content,
and its answers are not kept.
"""

import hashlib
import os
from collections.abc import Iterable
from importlib.metadata import version as software_version
from pathlib import Path
from typing import Final

import structlog

from sits_core.response_cache import cache_rule
from sits_executor.backends.base import LoadError
from sits_executor.repository.layout import CONFIG_FILE, ModelFolder
from sits_protos.oip.model_config_pb2 import ModelConfig

log = structlog.get_logger()

DIGEST_BYTES: Final = 16
Stamp = tuple[tuple[str, int, int, int], ...]
"""Name, inode, size and time of change of every file."""


class Content:
    """Made before a version is loaded, asked once it is. Raises `LoadError` for parameters of
    the response cache that make no sense."""

    def __init__(self, config: ModelConfig, folder: ModelFolder, version: str) -> None:
        self._folder, self._version = folder, version
        self._kept = _is_kept(config)
        self._before = self._stamp() if self._kept else ()

    def digest(self, config: ModelConfig, steps: Iterable[bytes] = ()) -> bytes:
        """`config` is completed; `steps` are the contents of a pipeline's models. A step without
        one makes it different at every load: a pipeline is loaded anew when a step is."""
        if not self._kept:
            return b""
        made = hashlib.blake2b(digest_size=DIGEST_BYTES)
        made.update(software_version("sits-executor").encode())
        made.update(config.SerializeToString(deterministic=True))
        for step in steps:
            made.update(step or os.urandom(DIGEST_BYTES))
        for name, *_ in self._before:
            made.update(f"\n{name}\n".encode() + _digest(self._folder.path / name))
        if self._stamp() != self._before:
            log.warning("model.changed_while_loading", model=config.name, version=self._version)
            return b""
        return made.digest()

    def _stamp(self) -> Stamp:
        """The version's own files, and those that all versions share."""
        path = self._folder.path
        own = (path / self._version).rglob("*") if self._version else ()
        shared = (file for file in path.iterdir() if file.name != CONFIG_FILE)
        files = sorted(file for file in (*own, *shared) if file.is_file())
        return tuple(_state(file, path) for file in files if self._inside(file))

    def _inside(self, file: Path) -> bool:
        """Links that lead out of the repository are never opened."""
        return file.resolve().is_relative_to(self._folder.root)


def _is_kept(config: ModelConfig) -> bool:
    try:
        return cache_rule(config) is not None
    except ValueError as error:
        raise LoadError(str(error)) from None


def _state(file: Path, root: Path) -> tuple[str, int, int, int]:
    found = file.stat()
    return str(file.relative_to(root)), found.st_ino, found.st_size, found.st_mtime_ns


def _digest(file: Path) -> bytes:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").digest()
