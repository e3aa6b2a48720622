"""Files sent with a load call: written into a private folder that goes when the model does."""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from sits_core.errors import InvalidArgument
from sits_executor.backends.base import LoadError
from sits_executor.repository.layout import ModelFolder, check_relative, refuse_pickled

MAX_FILES = 1000


class Upload:
    """A model folder of its own. `remove` deletes it."""

    def __init__(self, name: str, files: Mapping[str, bytes], limit_bytes: int) -> None:
        self._name, self._files, self._limit_bytes = name, files, limit_bytes
        self._temporary: tempfile.TemporaryDirectory[str] | None = None

    def write(self) -> ModelFolder:
        """Raises `InvalidArgument` for unsafe or too many files before anything is written."""
        self._check()
        self._temporary = tempfile.TemporaryDirectory(prefix="sits-model-")
        root = Path(self._temporary.name).resolve()
        for relative, content in self._files.items():
            path = root / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        return ModelFolder(self._name, root, root)

    def remove(self) -> None:
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    def _check(self) -> None:
        total = sum(len(content) for content in self._files.values())
        if total > self._limit_bytes or len(self._files) > MAX_FILES:
            raise InvalidArgument(
                f"{len(self._files)} files of {total} bytes were sent, expected at most "
                f"{MAX_FILES} files of {self._limit_bytes} bytes"
            )
        try:
            for relative in self._files:
                check_relative(relative)
                refuse_pickled(relative)
        except LoadError as error:
            raise InvalidArgument(str(error)) from None
