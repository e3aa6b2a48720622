"""Limits on what a request may declare, and checks of names and ids.

All are computed on what was declared, with Python's unbounded integers, before any
memory is taken for it.
"""

import re
from collections.abc import Sequence

from sits_core.errors import InvalidArgument, SitsError

MAX_RANK = 32
MAX_ELEMENTS = (1 << 31) - 1
"""Of one tensor, zero dimensions counted as one: more cannot be carried by a message."""
MAX_TENSORS = 1024
"""Inputs, raw entries, and requested outputs of a request, each."""
MAX_PARAMETERS = 128
MAX_NAME_CHARS = 256
"""Model and tensor names, parameter keys, shared-memory region names."""
MAX_ID_CHARS = 512
MAX_VALUE_CHARS = 64 << 10
"""Text values of parameters."""

_ID_SHOWN_CHARS = 128
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def check_name(what: str, value: str, limit: int = MAX_NAME_CHARS) -> None:
    """Raise `InvalidArgument` for a text that is too long or holds control characters."""
    if len(value) <= limit and value.isprintable():
        return  # all but a few texts: cheaper than the search below
    if len(value) > limit:
        raise InvalidArgument(f"{what} has {len(value)} characters, expected at most {limit}")
    if _CONTROL.search(value):
        raise InvalidArgument(f"{what} {value[:80]!r} contains control characters")


def check_count(what: str, count: int, limit: int) -> None:
    if count > limit:
        raise InvalidArgument(f"request has {count} {what}, expected at most {limit}")


def dims_text(dims: Sequence[int]) -> str:
    """`[1,3,640]`; long ones are cut."""
    shown = ",".join(map(str, dims[:MAX_RANK]))
    return f"[{shown}{',…' if len(dims) > MAX_RANK else ''}]"


def with_request_id(error: SitsError, request_id: str) -> SitsError:
    """The same error, its text led by the request's id as Triton does it."""
    shown = request_id[:_ID_SHOWN_CHARS] or "<id_unknown>"
    text = f"[request id: {shown}] {error}"
    return type(error)(text, reason=error.reason, retry_after_ms=error.retry_after_ms)
