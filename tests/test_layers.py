"""Layers depend downwards only, and services never on each other."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LIBRARIES = {"sits_core", "sits_channel", "sits_scheduling", "sits_protos"}
MAY_IMPORT: dict[str, set[str]] = {
    "sits_protos": set(),
    "sits_scheduling": set(),
    "sits_core": {"sits_protos"},
    "sits_channel": {"sits_core", "sits_protos"},
    "sits_sim": {"sits_scheduling"},
    "sits_cli": LIBRARIES | {"sits_sim"},
    "sits_preprocess": LIBRARIES,
    "sits_dispatcher": LIBRARIES,
    "sits_executor": LIBRARIES,
    "sits_topology": LIBRARIES,
}
PACKAGES = sorted(p for folder in ("libs", "services") for p in (ROOT / folder).glob("*/sits_*"))


def imported(source: Path) -> set[str]:
    """Our packages that a file imports, at its top or anywhere below."""
    names: list[str] = []
    for node in ast.walk(ast.parse(source.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names if name.startswith("sits_")}


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_a_package_imports_only_what_its_layer_may(package: Path) -> None:
    may = MAY_IMPORT[package.name] | {package.name}
    forbidden = {
        str(source.relative_to(ROOT)): sorted(imported(source) - may)
        for source in package.rglob("*.py")
        if not imported(source) <= may
    }
    assert forbidden == {}


def test_imports_are_seen_wherever_they_stand(tmp_path: Path) -> None:
    source = tmp_path / "x.py"
    source.write_text(
        "import sits_a.b\ndef f():\n    from sits_c import d\nfrom .sits_e import g\n"
    )
    assert imported(source) == {"sits_a", "sits_c"}


def test_the_distribution_names_what_its_package_imports() -> None:
    """Otherwise an image with one service alone would lack a library."""
    missing = {}
    for package in PACKAGES:
        declared = (package.parent / "pyproject.toml").read_text()
        used = {name for source in package.rglob("*.py") for name in imported(source)}
        lacking = [n for n in used - {package.name} if f'"{n.replace("_", "-")}"' not in declared]
        if lacking:
            missing[package.name] = sorted(lacking)
    assert missing == {}
