"""Every version this executor knows, in every state. Readers never wait for a load."""

import threading
from collections.abc import Callable, Iterable
from typing import NamedTuple

from sits_core.errors import NotFound, Unavailable
from sits_executor.repository.describe import announced_apart
from sits_executor.repository.loaded import LoadedModel
from sits_protos.v1.link_pb2 import Catalog as CatalogMessage
from sits_protos.v1.link_pb2 import ModelEntry, ModelState

_Key = tuple[str, str]
_NOTHING = ModelEntry()


class _Known(NamedTuple):
    entry: ModelEntry
    loaded: LoadedModel | None


class Catalog:
    """`changed` is called after every change, never with the lock held.

    A version that failed to load or was unloaded stays known, with the reason. A version
    that serves keeps its READY entry while its successor loads.
    """

    def __init__(self) -> None:
        self._known: dict[_Key, _Known] = {}
        self._revision = 0
        self._lock = threading.Lock()
        self.changed: Callable[[], object] = lambda: None

    def find(self, name: str, version: str) -> LoadedModel:
        """The ready version; empty = the newest ready one. Raises `NotFound` or `Unavailable`."""
        known = self._known
        entry = known.get((name, version)) if version else _newest(known, name)
        if entry is None:
            raise NotFound(f"model '{name}' version '{version}' is not on this executor")
        if entry.loaded is None:
            state = ModelState.Name(entry.entry.state).removeprefix("MODEL_STATE_").lower()
            raise Unavailable(
                f"model '{name}' version '{version}' is {state}", reason="MODEL_NOT_READY"
            )
        return entry.loaded

    def loaded(self, name: str | None = None) -> list[LoadedModel]:
        """Versions that serve: of one model, or all."""
        return [
            known.loaded
            for (model, _), known in self._known.items()
            if known.loaded is not None and name in (None, model)
        ]

    def entries(self) -> list[ModelEntry]:
        """By name, then version number."""
        known = self._known
        return [known[key].entry for key in sorted(known, key=lambda k: (k[0], int(k[1] or 0)))]

    def message(self) -> CatalogMessage:
        with self._lock:
            revision = self._revision
            return CatalogMessage(models=self.entries(), revision=revision)

    def loading(self, name: str, versions: Iterable[str]) -> None:
        """Versions that do not serve yet are LOADING; others go on serving. What is announced of
        a pipeline without its steps still is."""
        state = ModelState.MODEL_STATE_LOADING
        for version in versions:
            known = self._known.get((name, version))
            like = announced_apart(known.entry) if known else None
            self._mark(name, [version], state, "", like, even_if_serving=False)

    def failed(
        self, name: str, versions: Iterable[str], reason: str, like: ModelEntry | None = None
    ) -> None:
        """Versions that do not serve are UNAVAILABLE; others go on serving. `like` has what is
        announced of them nevertheless."""
        state = ModelState.MODEL_STATE_UNAVAILABLE
        self._mark(name, versions, state, reason, like, even_if_serving=False)

    def install(self, model: LoadedModel) -> LoadedModel | None:
        """From now on `model` serves its version; the one it replaces is returned."""
        key = (model.entry.name, model.entry.version)
        with self._lock:
            old = self._known.get(key)
            self._replace({**self._known, key: _Known(model.entry, model)}, key[0])
        self.changed()
        return old.loaded if old else None

    def withdraw(
        self, name: str, versions: Iterable[str], reason: str, like: ModelEntry | None = None
    ) -> list[LoadedModel]:
        """These versions serve no more; they are returned, so that they can finish."""
        chosen = tuple(versions)
        found = [m for m in self.loaded(name) if m.entry.version in chosen]
        state = ModelState.MODEL_STATE_UNAVAILABLE
        self._mark(name, chosen, state, reason, like, even_if_serving=True)
        return found

    def versions(self, name: str) -> list[str]:
        return [version for model, version in self._known if model == name]

    def _mark(
        self,
        name: str,
        versions: Iterable[str],
        state: ModelState.ValueType,
        reason: str,
        like: ModelEntry | None = None,
        *,
        even_if_serving: bool,
    ) -> None:
        with self._lock:
            known = dict(self._known)
            for version in versions:
                current = known.get((name, version))
                if current is None or current.loaded is None or even_if_serving:
                    entry = ModelEntry(name=name, version=version, state=state, reason=reason)
                    entry.MergeFrom(like or _NOTHING)
                    known[name, version] = _Known(entry, None)
            self._replace(known, name)
        self.changed()

    def _replace(self, known: dict[_Key, _Known], name: str) -> None:
        """Readers see the old dict or the new one. A failure that named no version is over
        as soon as versions are known."""
        if any(model == name and version for model, version in known):
            known.pop((name, ""), None)
        self._known = known
        self._revision += 1

    def __repr__(self) -> str:
        return f"<Catalog {len(self.loaded())} of {len(self._known)} serve>"


def _newest(known: dict[_Key, _Known], name: str) -> _Known | None:
    """The newest that serves, else the newest at all."""
    own = [
        (k.loaded is not None, int(v or 0), k) for (model, v), k in known.items() if model == name
    ]
    return max(own, key=lambda item: item[:2])[2] if own else None
