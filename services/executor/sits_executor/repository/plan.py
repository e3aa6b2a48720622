"""What a model's folder asks for, from its configuration and the names of its files."""

from dataclasses import dataclass

from sits_core import pipeline as pipelines
from sits_core.pipeline import Pipeline, PipelineError
from sits_executor.backends.base import LoadError
from sits_executor.backends.choice import Choice, choose
from sits_executor.pipelines.opening import NO_BACKEND
from sits_executor.repository import given as given_config
from sits_executor.repository import versions
from sits_executor.repository.given import Given
from sits_executor.repository.layout import ModelFolder, refuse_pickled
from sits_executor.repository.supported import Placement, placement, refuse_unsupported
from sits_protos.oip.model_config_pb2 import ModelConfig


@dataclass(frozen=True, slots=True)
class Plan:
    """What is to be loaded of one model, known before anything heavy starts. `pipeline` None =
    it is a model of its own."""

    folder: ModelFolder
    given: Given
    choice: Choice
    placement: Placement
    versions: tuple[str, ...]
    pipeline: Pipeline | None = None

    def filename(self, version: str) -> str:
        """The file to open, checked; empty for backends without one. Raises `LoadError`."""
        choice, written = self.choice, self.given.config.default_model_filename
        known = (choice.filename, *choice.or_filenames)
        found = [name for name in known if name and self.folder.has(f"{version}/{name}")]
        wanted = written or next(iter(found), choice.filename)
        if not wanted:
            return ""
        refuse_pickled(wanted, choice.opens)
        relative = f"{version}/{wanted}"
        if not self.folder.has(relative):
            for path in sorted((self.folder.path / version).iterdir()):
                refuse_pickled(path.name, choice.opens)
            raise LoadError(f"there is no file '{relative}' in the model's folder")
        self.folder.file(relative)
        return wanted


def plan_of(folder: ModelFolder, config_json: str = "", *, on_gpu: bool) -> Plan:
    """Reads the configuration only. Raises `LoadError`."""
    given = given_config.read(folder, config_json)
    refuse_unsupported(given.config)
    pipeline = _pipeline(given.config)
    return Plan(
        folder=folder,
        given=given,
        choice=NO_BACKEND if pipeline else choose(given.config),
        placement=placement(given.config, on_gpu),
        versions=tuple(map(str, versions.choose(given.config.version_policy, folder.versions()))),
        pipeline=pipeline,
    )


def _pipeline(config: ModelConfig) -> Pipeline | None:
    if not pipelines.is_pipeline(config):
        return None
    try:
        return pipelines.read(config)
    except PipelineError as error:
        raise LoadError(str(error)) from None
