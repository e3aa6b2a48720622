"""Backends whose library is an optional extra: it is imported when the first such model loads."""

from importlib import import_module

from sits_executor.backends.base import Backend, Factory, LoadError, LoadSpec


def lazily(module: str, extra: str) -> Factory:
    """The function `load` of a module of `sits_executor.backends`."""

    def load(spec: LoadSpec) -> Backend:
        try:
            loaded = import_module(f"sits_executor.backends.{module}")
        except ModuleNotFoundError as error:
            raise LoadError(
                f"this backend needs {error.name}, which is not installed: "
                f"pip install 'sits-executor[{extra}]'"
            ) from None
        backend: Backend = loaded.load(spec)
        return backend

    return load
