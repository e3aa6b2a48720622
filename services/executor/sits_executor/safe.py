"""Texts of foreign exceptions: for clients one line, short, no paths; for the log more."""

import re
import traceback
from collections.abc import Mapping

from sits_core.errors import safe_text

_MAX_CHARACTERS = 400
_MAX_DETAIL_CHARACTERS = 8000
_PATH = re.compile(r"(?<![\w.])(?:~|\.\.?)?/[\w.+@%=~-]+(?:/[\w.+@%=~-]*)*")

_HOST = re.compile(r"hostname=[^\s;]+")
"""As ONNX Runtime puts it into what CUDA says."""


def safe_cause(error: BaseException, names: Mapping[str, str] | None = None) -> str:
    """`<type>: <first line>`, cut, without file system paths and the host's name. `names`: folders,
    and what others may read in their place."""
    first = _HOST.sub("hostname=<host>", str(error).strip().partition("\n")[0])
    for folder, name in (names or {}).items():
        first = re.sub(rf"(?<![\w.]){re.escape(folder)}(?=/)", name, first)
    kind = type(error).__name__
    return safe_text(f"{kind}: {hide_paths(first[:_MAX_CHARACTERS])}" if first else kind)


def detail(error: BaseException) -> str:
    """Traceback and text for our own log, cut: models put whole tensors into their texts."""
    return "".join(traceback.format_exception(error))[:_MAX_DETAIL_CHARACTERS]


def hide_paths(text: str) -> str:
    return _PATH.sub("<path>", text)
