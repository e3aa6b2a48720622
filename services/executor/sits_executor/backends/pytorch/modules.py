"""Python modules that a configuration may name: ours, and those that installed packages register.

A configuration only ever names an entry; no code comes from a model repository. Packages add
theirs as entry points of the group `sits_executor.torch_modules`: a function that takes the
options and returns a `torch.nn.Module`. Its weights come from the model's folder afterwards.
"""

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from typing import Final

import torch

from sits_executor.backends.base import LoadError
from sits_executor.backends.pytorch import encoder, perceptron

GROUP: Final = "sits_executor.torch_modules"

Options = Mapping[str, str]
"""The parameters of config.pbtxt that begin with `module.`, without that."""

Build = Callable[[Options], torch.nn.Module]

OWN: Final[Mapping[str, Build]] = {"encoder": encoder.build, "perceptron": perceptron.build}


def build(name: str, options: Options) -> torch.nn.Module:
    """Raises `LoadError` for an unknown name; a module raises `ValueError` for its options."""
    if name in OWN:
        return OWN[name](options)
    found = entry_points(group=GROUP, name=name)
    if not found:
        known = ", ".join([*OWN, *sorted(entry_points(group=GROUP).names)])
        raise LoadError(f"there is no registered module '{name}', expected one of {known}")
    registered: Build = next(iter(found)).load()
    return registered(options)
