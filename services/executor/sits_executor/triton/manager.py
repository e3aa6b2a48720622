"""The Triton server's models as this executor's: follows its index, passes loads on."""

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Final, Protocol

import structlog

from sits_core.errors import SitsError
from sits_executor.backends.base import LoadError, Unserved
from sits_executor.background import Background
from sits_executor.repository.catalog import Catalog
from sits_executor.repository.layout import check_name
from sits_executor.repository.loaded import LoadedModel
from sits_executor.triton.server import Counted, Indexed, TritonServer
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelEntry

log = structlog.get_logger()

UNLOADED: Final = "not loaded by the Triton server"
Key = tuple[str, str]


class Make(Protocol):
    """Makes a version that runs on the server. Raises `LoadError` for what SITS cannot serve."""

    def __call__(
        self, config: ModelConfig, version: str, versions: list[str], lost: Callable[[], object]
    ) -> LoadedModel: ...


class TritonManager:
    """Looks every `period_s`, and at once when a run could not reach the server.

    What the index calls READY is served as long as its configuration stays; a change of it
    loads the version anew. While the server does not answer, nothing is served, and all comes
    back with it. `reachable` is called when either begins.
    """

    def __init__(
        self, server: TritonServer, catalog: Catalog, background: Background, make: Make,
        period_s: float,
    ) -> None:  # fmt: skip
        self._server, self._catalog, self._background = server, catalog, background
        self._make, self._period_s = make, period_s
        self._serving: dict[Key, bytes] = {}
        self._refused: dict[Key, bytes] = {}
        self._index: list[Indexed] = []
        self._up: bool | None = None
        self._wake, self._over = threading.Event(), threading.Event()
        self._turn = threading.Lock()
        self._first: Future[None] = Future()
        self.counted: Mapping[Key, Counted] = {}
        self.reachable: Callable[[bool], object] = lambda up: None

    def __repr__(self) -> str:
        return f"<TritonManager {self._server!r} up={self._up} {len(self._serving)} versions>"

    # as Manager has them

    def load_all(self) -> "list[Future[None]]":
        """Begins to follow. The future is done once the server has answered for the first time,
        however long that takes."""
        threading.Thread(target=self._follow, name="triton", daemon=True).start()
        return [self._first]

    def load(
        self, name: str, config_json: str = "", files: Mapping[str, bytes] | None = None
    ) -> "Future[None]":
        check_name(name)
        return self._background.submit(
            lambda: self._changed(lambda: self._server.load(name, config_json, files or {}))
        )

    def unload(self, name: str, *, with_steps: bool = False) -> "Future[None]":
        check_name(name)
        return self._background.submit(
            lambda: self._changed(lambda: self._server.unload(name, with_steps=with_steps))
        )

    def listing(self) -> list[ModelEntry]:
        """Ours, and what the server has in its repository and did not load."""
        entries = self._catalog.entries()
        known = {entry.name for entry in entries}
        untouched = sorted({one.name for one in self._index} - known)
        return sorted(
            [*entries, *(ModelEntry(name=name) for name in untouched)], key=lambda e: e.name
        )

    def close(self) -> None:
        self._over.set()
        self._wake.set()
        self._server.close()

    # following

    def look(self) -> None:
        """Once: make the catalog what the server has now."""
        with self._turn:
            try:
                self._follow_index(self._server.index())
                self.counted = self._server.statistics()
            except Unserved as error:
                self._lost(error)
            else:
                self._found()

    def _follow(self) -> None:
        while not self._over.is_set():
            try:
                self.look()
            except SitsError as error:
                log.warning("triton.look_failed", server=self._server.url, cause=error.message)
            except Exception:  # it must outlive whatever a server answers
                log.exception("triton.look_broken", server=self._server.url)
            self._wake.wait(self._period_s)
            self._wake.clear()

    def _changed(self, change: Callable[[], None]) -> None:
        change()
        self.look()

    def _follow_index(self, index: list[Indexed]) -> None:
        self._index = index
        versions: dict[str, list[str]] = {}
        for one in index:
            if one.ready:
                versions.setdefault(one.name, []).append(one.version)
        now = {(one.name, one.version) for one in index if one.ready}
        for key in self._serving.keys() - now:
            self._withdraw(key, _reason(index, key))
        for name, version in sorted(now):
            self._serve((name, version), sorted(versions[name], key=_number))
        for one in index:
            if not one.ready and one.version and one.reason not in ("", "unloaded"):
                self._catalog.failed(one.name, [one.version], f"Triton: {one.reason}")

    def _serve(self, key: Key, versions: list[str]) -> None:
        config = self._server.config(*key)
        same = config.SerializeToString(deterministic=True) + " ".join(versions).encode()
        if same in (self._serving.get(key), self._refused.get(key)):
            return
        try:
            model = self._make(config, key[1], versions, self._wake.set)
        except LoadError as error:
            self._refused[key] = same
            self._catalog.failed(key[0], [key[1]], str(error))
            log.warning("triton.model_refused", model=key[0], version=key[1], cause=str(error))
            return
        self._refused.pop(key, None)
        self._serving[key] = same
        if (old := self._catalog.install(model)) is not None:
            old.close()
        log.info("model.ready", model=key[0], versions=[key[1]], server=self._server.url)

    def _withdraw(self, key: Key, reason: str) -> None:
        self._serving.pop(key, None)
        for model in self._catalog.withdraw(key[0], [key[1]], reason):
            model.close()

    def _lost(self, error: Unserved) -> None:
        for key in list(self._serving):
            self._withdraw(key, f"the Triton server at {self._server.url} does not answer")
        if self._up is not False:
            log.warning("triton.lost", server=self._server.url, cause=error.message)
            self._up = False
            self.reachable(False)

    def _found(self) -> None:
        if not self._up:
            log.info("triton.found", server=self._server.url, models=len(self._serving))
            self._up = True
            self.reachable(True)
        if not self._first.done():
            self._first.set_result(None)


def _reason(index: list[Indexed], key: Key) -> str:
    found = [one.reason for one in index if (one.name, one.version) == key]
    return f"Triton: {found[0]}" if found and found[0] else UNLOADED


def _number(version: str) -> int:
    return int(version) if version.isdecimal() else 0
