"""The concrete catalog: what dispatchers announce, remembered through short absences."""

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from sits_core.clock import now_ns
from sits_core.errors import InvalidArgument, NotFound, Unavailable
from sits_preprocess.catalog import Model
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelEntry, ModelState

Key = tuple[str, str]

_NO_EXECUTOR = "no executor that serves it is connected"
_MAX_VERSION_DIGITS = 18


class _Retained(NamedTuple):
    model: Model
    until_ns: int


class _View(NamedTuple):
    """All sources merged. `ready` by name and version, and by name alone for the newest;
    `until_ns` 0 = until the next announcement."""

    models: tuple[Model, ...] = ()
    ready: Mapping[Key, Model] = {}
    until_ns: int = 0


class _Source:
    """What one dispatcher said last, and what its predecessor at that address said."""

    def __init__(self) -> None:
        self.process_id = ""
        self.models: dict[Key, Model] = {}
        self.retained: dict[Key, _Retained] = {}


class AnnouncedCatalog:
    """Merges the catalogs of all dispatchers, best state first.

    A restarted dispatcher knows no executor for a second, and a restarted executor is gone
    for as long. Models that were ready stay usable for `patience_s` then, so that requests
    wait for them instead of being told that there is no such model.

    `fallback` names the version of a model that requests without one get while degraded.
    """

    def __init__(self, patience_s: float, fallback: Mapping[str, str] | None = None) -> None:
        self._patience_ns = int(patience_s * 1e9)
        self._fallback, self._degraded = fallback or {}, False
        self._sources: dict[str, _Source] = {}
        self._lock = threading.Lock()
        self._view = _View()

    def announce(self, address: str, process_id: str, entries: Iterable[ModelEntry]) -> None:
        """Take over the catalog of the dispatcher at `address`, known as `process_id`."""
        with self._lock:
            source = self._sources.setdefault(address, _Source())
            fresh = {(e.name, e.version): _model(e) for e in entries}
            restarted = source.process_id not in ("", process_id)
            self._retain(source, fresh, restarted)
            source.process_id, source.models = process_id, fresh
            self._view = self._merge(now_ns())

    def degrade(self, degraded: bool) -> None:
        """Whether the cheaper versions are the ones to use; those that are not ready are not."""
        with self._lock:
            if self._degraded != degraded:
                self._degraded = degraded
                self._view = self._merge(now_ns())

    @property
    def degraded(self) -> bool:
        """Whether the cheaper versions are used."""
        return self._degraded

    def find(self, name: str, version: str) -> Model:
        """See `sits_preprocess.catalog.Catalog.find`. A dictionary access when all is well."""
        view = self._current()
        ready = view.ready.get((name, version))
        if ready is not None:
            return ready
        if version:
            check_version(name, version)
        known = [m for m in view.models if m.name == name]
        if not known:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        matching = [m for m in known if not version or m.version == version]
        if not matching:
            raise NotFound(f"Request for unknown model: '{name}' version {version} is not found")
        raise _not_ready(matching[-1], version)

    def models(self) -> list[Model]:
        return list(self._current().models)

    def _current(self) -> _View:
        """The merged state; made anew when something retained has run out."""
        if self._view.until_ns and now_ns() >= self._view.until_ns:
            with self._lock:
                self._view = self._merge(now_ns())
        return self._view

    def _merge(self, now: int) -> _View:
        best: dict[Key, Model] = {}
        for key, model in self._candidates(now):
            if key not in best or (model.ready and not best[key].ready):
                best[key] = model
        models = tuple(sorted(best.values(), key=_order))
        ready = {(m.name, m.version): m for m in models if m.ready}
        ready |= {(m.name, ""): m for m in models if m.ready}  # the last one is the newest
        if self._degraded:
            cheaper = {(m, ""): ready.get((m, version)) for m, version in self._fallback.items()}
            ready |= {key: model for key, model in cheaper.items() if model is not None}
        retained = [r.until_ns for s in self._sources.values() for r in s.retained.values()]
        return _View(models, ready, min((t for t in retained if t > now), default=0))

    def _candidates(self, now: int) -> Iterator[tuple[Key, Model]]:
        for source in self._sources.values():
            yield from source.models.items()
            for key, retained in source.retained.items():
                if retained.until_ns > now:
                    yield key, retained.model

    def _retain(self, source: _Source, fresh: dict[Key, Model], restarted: bool) -> None:
        until = now_ns() + self._patience_ns
        for key, old in source.models.items():
            new = fresh.get(key)
            orphaned = new is not None and not new.ready and new.reason == _NO_EXECUTOR
            if old.ready and (orphaned or (restarted and new is None)):
                source.retained[key] = _Retained(old, until)
        for key in [k for k in source.retained if k in fresh and fresh[k].reason != _NO_EXECUTOR]:
            del source.retained[key]


def _order(model: Model) -> tuple[str, int]:
    """A model that failed before any version of it was known has none."""
    return model.name, int(model.version or 0)


def check_version(name: str, version: str) -> None:
    """Versions are positive integers in plain decimal: no sign, space or leading zero."""
    plain = version.isascii() and version.isdigit() and not version.startswith("0")
    if not plain or len(version) > _MAX_VERSION_DIGITS:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{version[:40]}' for model "
            f"'{name}', expected a positive integer or nothing"
        )


def _not_ready(model: Model, version: str) -> Unavailable:
    reason = f": {model.reason}" if model.reason else ""
    state = ModelState.Name(model.state).removeprefix("MODEL_STATE_").lower()
    label = f"'{model.name}' version {model.version}" if version else f"'{model.name}'"
    return Unavailable(
        f"Request for unknown model: {label} is not at ready state, it is {state}{reason}",
        reason="MODEL_NOT_READY",
    )


def _model(entry: ModelEntry) -> Model:
    return Model(
        name=entry.name,
        version=entry.version,
        state=entry.state,
        reason=entry.reason,
        metadata=ModelMetadataResponse.FromString(entry.metadata),
        config=ModelConfig.FromString(entry.config),
        labels={name: tuple(labels.values) for name, labels in entry.labels.items()},
        content=entry.content,
    )
