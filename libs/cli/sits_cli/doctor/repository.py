"""The model repository: whether each model can be read, and would load."""

import importlib
import os
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

from sits_cli.doctor.finding import Environ, Finding, good, note, problem, warning

VARIABLE = "SITS_EXECUTOR_MODEL_REPOSITORY"
FETCH = "`make models` fetches the demo's"
EXAMINE = "sits_executor.repository.examine"
"""By name: the command belongs to no service, and works without any of them."""

Examine = Callable[[Path, str], tuple[str, bool]]
"""What is wrong with a model of a repository, and whether its files were opened."""


def models(environ: Environ) -> Iterator[Finding]:
    root = Path(environ.get(VARIABLE) or "models")
    if not root.is_dir():
        yield warning("models", f"no folder {root}", f"{FETCH}, or set {VARIABLE}")
        return
    folders = sorted(entry for entry in root.iterdir() if _is_model(entry))
    if not folders:
        yield note("models", f"{root} is empty", f"{FETCH}; `sits models load` takes others")
        return
    wrong = {folder: [*_look(folder)] for folder in folders}
    yield from (finding for findings in wrong.values() for finding in findings)
    sound = [folder for folder in folders if not wrong[folder]]
    yield from _examined(root, [folder.name for folder in sound])


def _examined(root: Path, names: list[str]) -> Iterator[Finding]:
    """As the executor sees them, where it is installed."""
    try:
        examine = _examine()
    except ImportError as error:
        yield problem(
            "models", f"the executor cannot be imported: {error}",
            "install again with the pins: pip install -c constraints.txt ...",
        )  # fmt: skip
        return
    seen = {name: examine(root, name) for name in names}
    for name, (fault, _opened) in seen.items():
        if fault:
            do = f"mend what is in {root / name}, then `sits models load {name}`"
            yield problem("models", f"{name}: {fault}", do)
    fine = [name for name, (fault, opened) in seen.items() if opened and not fault]
    if fine:
        yield good("models", f"{root}: {', '.join(fine)}")
    unopened = [name for name, (fault, opened) in seen.items() if not opened and not fault]
    if unopened:
        yield note(
            "models", f"{root}: {', '.join(unopened)} not opened: large, for a GPU, or pipelines",
            "`sits up` says whether they load",
        )  # fmt: skip


def _examine() -> Examine:
    """Raises `ImportError` when the executor is broken. Without one, nothing is found wrong."""
    if find_spec(EXAMINE.partition(".")[0]) is None:
        return lambda _root, _name: ("", True)
    examine: Examine = importlib.import_module(EXAMINE).examine
    return examine


def _is_model(entry: Path) -> bool:
    return entry.is_dir() and not entry.name.startswith(".")


def _look(folder: Path) -> Iterator[Finding]:
    """Versions are folders with numbers for names, and hold something that can be read."""
    versions = [entry for entry in folder.iterdir() if entry.is_dir() and entry.name.isdecimal()]
    if not versions:
        yield problem("models", f"{folder} has no version", f"put the model into {folder}/1/")
    for path in (folder / "config.pbtxt", *(file for v in versions for file in v.iterdir())):
        if path.exists() and not os.access(path, os.R_OK):
            yield problem("models", f"{path} cannot be read",
                          "let the user that runs the executor read it")  # fmt: skip
    for version in versions:
        if not any(version.iterdir()) and not (folder / "config.pbtxt").exists():
            yield problem("models", f"{version} is empty", f"put model.onnx into {version}")
