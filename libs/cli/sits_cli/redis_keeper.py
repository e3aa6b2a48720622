"""Keeps the private Redis of a mesh alive, as the supervisor does with the services."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from sits_cli.private_redis import PrivateRedis
from sits_cli.supervisor import FIRST_BACKOFF_S, TICK_S, Change, Event, ignore
from sits_core.settings import SettingsError

NAME = "redis"


@dataclass(slots=True)
class RedisKeeper:
    """One thread starts the server, restarts it when it dies and stops it: the kernel
    ties the server to that thread."""

    listener: Callable[[Event], None] = ignore
    restart: bool = True
    server: PrivateRedis = field(default_factory=PrivateRedis)
    restarts: int = 0
    _wanted: bool = True
    _stop: threading.Event = field(default_factory=threading.Event)
    _up: threading.Event = field(default_factory=threading.Event)
    _failure: SettingsError | None = None
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)

    def start(self) -> str:
        """Its URL, once it answers. Raises `SettingsError` when it cannot run here."""
        self._thread.start()
        self._up.wait()
        if self._failure is not None:
            raise self._failure
        return self.server.url

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def kill(self, *, restart: bool = True) -> None:
        self._wanted = self._wanted and restart
        self.server.kill()

    def revive(self) -> None:
        self._wanted = True

    @property
    def pid(self) -> int | None:
        return self.server.pid

    def _run(self) -> None:
        try:
            self.server.start()
            self._tell(Change.STARTED)
        except SettingsError as error:
            self._failure = error
            return
        finally:
            self._up.set()
        while not self._stop.wait(TICK_S):
            if self.server.pid is None:
                self._bring_back()
        pid = self.server.pid or 0
        self.server.stop()
        self.listener(Event(NAME, Change.STOPPED, pid))

    def _bring_back(self) -> None:
        """One try; the next one comes a tick later."""
        self._tell(Change.EXITED)
        self._wanted = self._wanted and self.restart
        while not self._wanted:
            if self._stop.wait(TICK_S):
                return
        if self._stop.wait(FIRST_BACKOFF_S):
            return
        try:
            self.server.restart()
        except SettingsError:
            return
        self.restarts += 1
        self._tell(Change.STARTED)

    def _tell(self, change: Change) -> None:
        status = self.server.exit_status if change is Change.EXITED else None
        self.listener(Event(NAME, change, self.server.pid or 0, status))
