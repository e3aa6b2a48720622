"""Which input of config.pbtxt is which argument of `forward`, and which result is which output.

As Triton does: `NAME__2` is argument or result 2; names that `forward` has itself are those;
anything else goes by its order in the configuration.
"""

import re
from collections.abc import Mapping, Sequence

import torch

from sits_executor.backends.base import LoadError

_INDEXED = re.compile(r".+__(\d+)")


def call_order(names: Sequence[str], arguments: Sequence[str]) -> tuple[str, ...]:
    """Input names in the order of the call. `arguments` are those of `forward`, as far as it
    tells. Raises `LoadError` when indices have gaps, or an argument in between is missing."""
    if (indexed := _by_index(names)) is not None:
        return indexed
    if not set(names) <= set(arguments):
        return tuple(names)
    ordered = tuple(sorted(names, key=arguments.index))
    if ordered != tuple(arguments[: len(ordered)]):
        raise LoadError(
            f"forward takes {', '.join(arguments)}; the configuration has {', '.join(ordered)}: "
            "an argument in between cannot be left out"
        )
    return ordered


def result_order(names: Sequence[str]) -> tuple[str, ...]:
    """Output names in the order of a tuple that `forward` returns."""
    return _by_index(names) or tuple(names)


def named_results(result: object, names: Sequence[str]) -> dict[str, torch.Tensor]:
    """What `forward` returned: one tensor, some in a tuple or list, or a mapping by name.

    Raises `ValueError` when something is missing or is no tensor."""
    if isinstance(result, torch.Tensor):
        found: dict[str, object] = {names[0]: result}
    elif isinstance(result, Mapping):
        found = {name: result.get(name) for name in names}
    elif isinstance(result, tuple | list):
        found = dict(zip(names, result, strict=False))
    else:
        raise ValueError(f"forward returned {type(result).__name__}, expected tensors")
    tensors = {name: value for name, value in found.items() if isinstance(value, torch.Tensor)}
    if missing := [name for name in names if name not in tensors]:
        raise ValueError(f"forward returned no tensor for output '{missing[0]}'")
    return tensors


def _by_index(names: Sequence[str]) -> tuple[str, ...] | None:
    matches = [_INDEXED.fullmatch(name) for name in names]
    if not names or any(match is None for match in matches):
        return None
    places = {int(match[1]): match[0] for match in matches if match is not None}
    if sorted(places) != list(range(len(names))):
        raise LoadError(f"the numbers in {', '.join(names)} are not 0 to {len(names) - 1}")
    return tuple(places[index] for index in range(len(names)))
