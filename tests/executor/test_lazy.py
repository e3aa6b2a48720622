"""Backends whose library is imported when a model needs it."""

import gc
import sys
from pathlib import Path
from types import ModuleType

import pytest

from sits_executor.backends import lazy
from sits_executor.backends.base import LoadError, LoadSpec
from sits_protos.oip.model_config_pb2 import ModelConfig

SPEC = LoadSpec("m", "1", Path(), "", ModelConfig(), 1, 1, None)


def test_a_library_that_is_missing_fails_the_load_and_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> ModuleType:
        raise ModuleNotFoundError("no torch", name="torch")

    monkeypatch.setattr(lazy, "import_module", missing)
    with pytest.raises(LoadError, match=r"needs torch.*pip install 'sits-executor\[extra\]'"):
        lazy.lazily("some.module", "extra")(SPEC)


def test_the_collector_is_spared_from_a_library_once(monkeypatch: pytest.MonkeyPatch) -> None:
    frozen: list[int] = []
    module = ModuleType("sits_executor.backends.fake")
    module.load = lambda spec: spec  # type: ignore[attr-defined]

    def imported(name: str) -> ModuleType:
        sys.modules[name] = module
        return module

    monkeypatch.setattr(lazy, "import_module", imported)
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append(1))
    try:
        for _ in range(2):
            assert lazy.lazily("fake", "extra")(SPEC) is SPEC
    finally:
        del sys.modules["sits_executor.backends.fake"]
    assert frozen == [1]
