"""Strategies of installed packages are found; unusable ones are refused by name."""

from pathlib import Path

import pytest

from sits_scheduling.plugins import PluginError, load_strategies

MODULE = """
from sits_scheduling.strategies import STRATEGIES, Strategy

def cheapest(rng):
    known = STRATEGIES["random"](rng)
    return Strategy("cheapest", known.order, known.placement)

number = 3
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def package(where: Path, name: str, points: str) -> None:
    info = where / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sits.strategies]\n{points}\n")
    (where / f"{name}.py").write_text(MODULE)


def test_an_installed_strategy_is_found(install: Path) -> None:
    package(install, "found_strategy", "cheapest = found_strategy:cheapest")
    assert set(load_strategies()) == {"cheapest"}


@pytest.mark.parametrize(
    ("points", "reason"),
    [
        ("topo_aware = refused:cheapest", "the name is taken"),
        ("mine = refused:missing", "missing"),
        ("mine = no_such_module_here:f", "no_such_module_here"),
        ("mine = refused:number", "expected a function"),
    ],
)
def test_an_unusable_strategy_is_refused_by_name(install: Path, points: str, reason: str) -> None:
    package(install, "refused", points)
    with pytest.raises(PluginError, match=reason):
        load_strategies()
