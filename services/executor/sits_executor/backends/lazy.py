"""Backends whose library is an optional extra: it is imported when the first such model loads."""

import gc
import sys
from importlib import import_module
from types import ModuleType

from sits_executor.backends.base import Backend, Factory, LoadError, LoadSpec


def lazily(module: str, extra: str) -> Factory:
    """The function `load` of a module of `sits_executor.backends`."""

    def load(spec: LoadSpec) -> Backend:
        try:
            loaded = _imported(f"sits_executor.backends.{module}")
        except ModuleNotFoundError as error:
            raise LoadError(
                f"this backend needs {error.name}, which is not installed: "
                f"pip install 'sits-executor[{extra}]'"
            ) from None
        backend: Backend = loaded.load(spec)
        return backend

    return load


def _imported(name: str) -> ModuleType:
    """A library lives as long as the process: the collector is spared from it. To go through all
    that PyTorch makes takes a sixteenth of a second, in which nothing is answered."""
    known = name in sys.modules
    module = import_module(name)
    if not known:
        gc.freeze()
    return module
