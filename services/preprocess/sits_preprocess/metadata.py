"""What the front door says about itself and about models, from what executors announced."""

from sits_core.errors import InvalidArgument, NotFound, Unavailable
from sits_preprocess.catalog import Catalog, Model
from sits_preprocess.oip.limits import check_name
from sits_protos.oip import grpc_service_pb2 as pb

SERVER_NAME = "sits"

EXTENSIONS = (
    "classification",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Only what works: no sequence, no cuda_shared_memory. `statistics` is what makes
perf_analyzer ask for ModelStatistics."""


UNLOADED = "unloaded"
"""The reason that executors announce for a model that was unloaded by request."""


class Metadata:
    """Answers from the catalog; reads never block.

    `strict` readiness: the server is ready when every known model is, except those that
    were unloaded on purpose; otherwise one ready model is enough. With none at all nothing
    can be served: not ready.
    """

    def __init__(
        self, catalog: Catalog, version: str, *, client_shm: bool, strict: bool = True
    ) -> None:
        self._catalog, self._version, self._strict = catalog, version, strict
        self._extensions = (*EXTENSIONS, "system_shared_memory") if client_shm else EXTENSIONS

    def server_ready(self) -> bool:
        models = self._catalog.models()
        states = [m.ready for m in models if m.ready or m.reason != UNLOADED]
        return bool(states) and (all(states) if self._strict else any(states))

    def server_metadata(self) -> pb.ServerMetadataResponse:
        return pb.ServerMetadataResponse(
            name=SERVER_NAME, version=self._version, extensions=self._extensions
        )

    def model_ready(self, request: pb.ModelReadyRequest) -> pb.ModelReadyResponse:
        """False for a name or version nobody announced, so that clients can poll for it."""
        try:
            self._find(request.name, request.version)
        except (NotFound, Unavailable):
            return pb.ModelReadyResponse(ready=False)
        return pb.ModelReadyResponse(ready=True)

    def model_metadata(self, request: pb.ModelMetadataRequest) -> pb.ModelMetadataResponse:
        """Metadata of one version; `versions` lists all that are ready."""
        model = self._find(request.name, request.version)
        response = pb.ModelMetadataResponse()
        response.CopyFrom(model.metadata)
        response.name = model.name
        response.versions[:] = [m.version for m in self._ready(model.name)]
        return response

    def model_config(self, request: pb.ModelConfigRequest) -> pb.ModelConfigResponse:
        model = self._find(request.name, request.version)
        return pb.ModelConfigResponse(config=model.config)

    def statistics_models(self, request: pb.ModelStatisticsRequest) -> list[Model]:
        """The models that ModelStatistics is about: an empty name means all that are ready,
        an empty version all ready versions. Raises what `Catalog.find` raises."""
        if not request.name:
            return [model for model in self._catalog.models() if model.ready]
        try:
            model = self._find(request.name, request.version)
        except NotFound:
            raise NotFound(self._not_available(request.name)) from None
        return [model] if request.version else self._ready(request.name)

    def _find(self, name: str, version: str) -> Model:
        check_model_name(name)
        return self._catalog.find(name, version)

    def _ready(self, name: str) -> list[Model]:
        return [model for model in self._catalog.models() if model.name == name and model.ready]

    def _not_available(self, name: str) -> str:
        if knows(self._catalog, name):
            return f"requested model version is not available for model '{name}'"
        return f"requested model '{name}' is not available"


def check_model_name(name: str) -> None:
    """Raises `InvalidArgument` for a name that no model can have."""
    if not name:
        raise InvalidArgument("expected a model name, got none")
    check_name("model name", name)


def knows(catalog: Catalog, name: str) -> bool:
    """Whether any version of `name` exists, in whatever state."""
    return any(model.name == name for model in catalog.models())
