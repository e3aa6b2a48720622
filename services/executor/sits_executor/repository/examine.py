"""Whether a model of a repository would load here, as far as can be seen at little cost."""

from pathlib import Path
from typing import Final, NamedTuple

import onnxruntime

from sits_core.errors import SitsError
from sits_core.pipeline import Step
from sits_executor.backends import onnx_cuda
from sits_executor.backends.base import LoadError, LoadSpec
from sits_executor.repository.check import check
from sits_executor.repository.complete import complete, complete_pipeline
from sits_executor.repository.dependents import refuse_circle
from sits_executor.repository.describe import read_labels
from sits_executor.repository.layout import Repository
from sits_executor.repository.plan import Plan, plan_of
from sits_executor.safe import safe_cause
from sits_executor.settings import ExecutorSettings

MAX_OPENED_BYTES: Final = 256 << 20
"""Larger versions take seconds and their size in memory."""
OPENED: Final = ("onnxruntime", "builtin")
"""Backends that open a model at little cost."""


class Seen(NamedTuple):
    """`fault`: why it cannot be loaded, empty when nothing is wrong. `opened`: whether its files
    were read as well, not just its configuration and their names."""

    fault: str
    opened: bool


def examine(root: Path, name: str) -> Seen:
    """Opens what runs on the CPU, and closes it again. Whether a GPU takes its models, and whether
    the steps of a pipeline fit each other, shows when they load."""
    repository = Repository(root)
    try:
        plan = plan_of(repository.folder(name), on_gpu=False)
        if plan.pipeline is not None:
            refuse_circle(repository, plan.pipeline)
            check(complete_pipeline(plan.given), None)
            for step in plan.pipeline.steps:
                _require_sound(root, step)
            return Seen("", opened=False)
        opened = [_opened(plan, version) for version in plan.versions]
        return Seen("", opened=all(opened))
    except (LoadError, SitsError) as error:
        return Seen(str(error), opened=False)
    except Exception as error:  # noqa: BLE001 - whatever a file makes its library raise
        return Seen(safe_cause(error), opened=False)


def _require_sound(root: Path, step: Step) -> None:
    """Raises `LoadError` for a step that is not there or would not load."""
    if fault := examine(root, step.model).fault:
        raise LoadError(f"{step}: {fault}")


def _opened(plan: Plan, version: str) -> bool:
    """Raises `LoadError`, or anything that a factory raises."""
    directory = (plan.folder.path / version).resolve()
    filename = plan.filename(version)
    read_labels(plan.given.config, plan.folder)
    if plan.choice.backend not in OPENED or _size_bytes(directory) > MAX_OPENED_BYTES:
        return False
    spec = LoadSpec(
        plan.folder.name, version, directory, filename, plan.given.config,
        instances=1, threads=1, gpu=None,
    )  # fmt: skip
    if plan.placement.gpu is not None:  # its operators may be a GPU's only
        if plan.choice.backend == "onnxruntime" and spec.parameter("cpu_fallback") != "true":
            onnx_cuda.require(onnxruntime)
        return False
    backend = plan.choice.load(spec)
    try:
        most = ExecutorSettings.model_fields["executor_default_max_batch"].default
        check(complete(plan.given, backend.signature, plan.placement, most), backend.signature)
    finally:
        backend.close()
    return True


def _size_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
