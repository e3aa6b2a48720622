"""Texts of foreign exceptions, made fit for clients: one line, short, no paths."""

import re

from sits_core.errors import safe_text

_MAX_CHARACTERS = 400
_PATH = re.compile(r"(?<![\w.])(?:~|\.\.?)?/[\w.+@%=~-]+(?:/[\w.+@%=~-]*)*")


def safe_cause(error: BaseException) -> str:
    """`<type>: <first line>`, cut, without file system paths."""
    first = str(error).strip().partition("\n")[0][:_MAX_CHARACTERS]
    kind = type(error).__name__
    return safe_text(f"{kind}: {hide_paths(first)}" if first else kind)


def hide_paths(text: str) -> str:
    return _PATH.sub("<path>", text)
