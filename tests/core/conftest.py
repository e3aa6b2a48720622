"""Redis servers, proxies in front of them and certificates, made for one test each."""

import socket
import socketserver
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest
import trustme

from sits_cli.private_redis import PrivateRedis
from sits_core.redis_registry import RedisRegistry, connect
from sits_core.settings import Settings


@pytest.fixture
def start_redis() -> Iterator[Callable[..., PrivateRedis]]:
    """Takes what `PrivateRedis` takes; all servers end with the test."""
    with ExitStack() as servers:
        yield lambda **options: servers.enter_context(PrivateRedis(**options))


@pytest.fixture
def redis_server(start_redis: Callable[..., PrivateRedis]) -> PrivateRedis:
    return start_redis()


@pytest.fixture
def open_registry() -> Iterator[Callable[..., RedisRegistry]]:
    """A registry from settings given by name; all of them end with the test."""
    with ExitStack() as opened:

        def open_one(**settings: str) -> RedisRegistry:
            registry = connect(Settings(**settings))
            assert registry is not None
            opened.callback(registry.close)
            return registry

        yield open_one


class Proxy(socketserver.ThreadingTCPServer):
    """Forwards connections to `target`, which may change: open ones stay where they are."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, target: Path, tls: ssl.SSLContext | None = None) -> None:
        self.target, self.tls = target, tls
        super().__init__(("127.0.0.1", 0), _Forward)
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def port(self) -> int:
        return self.server_address[1]


class _Forward(socketserver.BaseRequestHandler):
    server: Proxy

    def handle(self) -> None:
        with suppress(OSError), ExitStack() as sockets:
            client = self.request
            if self.server.tls is not None:
                client = self.server.tls.wrap_socket(client, server_side=True)
                sockets.enter_context(client)
            upstream = sockets.enter_context(socket.socket(socket.AF_UNIX))
            upstream.connect(str(self.server.target))
            back = threading.Thread(target=_copy, args=(upstream, client), daemon=True)
            back.start()
            _copy(client, upstream)
            back.join()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def start_proxy() -> Iterator[Callable[..., Proxy]]:
    with ExitStack() as proxies:

        def start(target: Path, tls: ssl.SSLContext | None = None) -> Proxy:
            proxy = proxies.enter_context(Proxy(target, tls))
            proxies.callback(proxy.shutdown)
            return proxy

        yield start


class Authority:
    """A private CA. `context` makes the server side of a certificate of it."""

    def __init__(self, folder: Path) -> None:
        self._ca = trustme.CA()
        self.file = folder / "ca.pem"
        self._ca.cert_pem.write_to_path(str(self.file))
        self.context = partial(_server_context, self._ca)


def _server_context(ca: trustme.CA, *names: str, **options: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(*names, **options).configure_cert(context)
    return context


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)
