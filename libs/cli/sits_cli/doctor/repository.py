"""The model repository: whether each model can be read."""

import os
from collections.abc import Iterator
from pathlib import Path

from sits_cli.doctor.finding import Environ, Finding, good, note, problem, warning

VARIABLE = "SITS_EXECUTOR_MODEL_REPOSITORY"
FETCH = "`make models` fetches the demo's"


def models(environ: Environ) -> Iterator[Finding]:
    root = Path(environ.get(VARIABLE) or "models")
    if not root.is_dir():
        yield warning("models", f"no folder {root}", f"{FETCH}, or set {VARIABLE}")
        return
    folders = sorted(entry for entry in root.iterdir() if _is_model(entry))
    wrong = [finding for folder in folders for finding in _look(folder)]
    yield from wrong
    if not folders:
        yield note("models", f"{root} is empty", f"{FETCH}; `sits models load` takes others")
    elif not wrong:
        yield good("models", f"{root}: {', '.join(folder.name for folder in folders)}")


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
