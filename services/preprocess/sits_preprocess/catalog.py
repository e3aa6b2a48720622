"""The models that executors announce, as the front door sees them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelState


@dataclass(frozen=True, slots=True)
class Model:
    """One version of one model. `max_batch_size` 0 = it does not batch. `content` is a digest of
    what it was loaded from, empty when its answers are not to be kept."""

    name: str
    version: str
    state: ModelState.ValueType
    reason: str
    metadata: ModelMetadataResponse
    config: ModelConfig
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    content: bytes = b""

    @property
    def max_batch_size(self) -> int:
        return self.config.max_batch_size

    @property
    def ready(self) -> bool:
        return self.state == ModelState.MODEL_STATE_READY


class Catalog(Protocol):
    """Reads never block and always see one consistent state."""

    def find(self, name: str, version: str) -> Model:
        """The ready model; an empty version means the newest ready one.

        Raises `InvalidArgument` for a malformed name or version, `NotFound` for an
        unknown one, `Unavailable` while it loads, unloads, or when its load failed.
        """
        ...

    def models(self) -> list[Model]:
        """All known versions in every state, by name and version number."""
        ...
