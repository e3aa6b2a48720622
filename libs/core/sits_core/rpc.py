"""gRPC servers and channels of the mesh: options, tokens, health, reflection."""

import hmac
from collections.abc import Callable, Sequence
from concurrent import futures
from typing import Any, Self

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from sits_core.healthcheck import ALIVE
from sits_core.interceptors import ErrorInterceptor, Interceptor, Metadata, TokenInterceptor
from sits_core.settings import Settings, SettingsError, is_loopback
from sits_core.tls import ClientTls, ServerTls, client_tls, server_tls

AUTHORIZATION = "authorization"
SERVER_THREADS = 1024
"""A long-lived stream holds a thread for its life; threads are made on demand. Calls
beyond are refused, since they might wait for ever."""

Options = list[tuple[str, int | str]]


def message_options(max_bytes: int) -> Options:
    return [
        ("grpc.max_send_message_length", max_bytes),
        ("grpc.max_receive_message_length", max_bytes),
    ]


def server_options(max_bytes: int) -> Options:
    """Clients may ping every 10 s, with or without calls; more often is abuse. A client whose
    host vanished without a word shows in 50 s."""
    return [
        *message_options(max_bytes),
        ("grpc.so_reuseport", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 9_000),
        ("grpc.http2.max_ping_strikes", 2),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.max_metadata_size", 16 << 10),
        ("grpc.absolute_max_metadata_size", 32 << 10),
    ]


def channel_options(max_bytes: int) -> Options:
    """Pings at 15 s stay above the 10 s that our servers allow; dead peers show in 20 s."""
    return [
        *message_options(max_bytes),
        ("grpc.keepalive_time_ms", 15_000),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        # How long one attempt may take, whatever its name says: a busy peer needs more than
        # the wait between two attempts.
        ("grpc.min_reconnect_backoff_ms", 2_000),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.enable_retries", 0),
        # A proxy meant for the internet must not get the mesh's traffic.
        ("grpc.enable_http_proxy", 0),
        # One TCP connection each, so that links do not share flow control.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def open_channel(address: str, settings: Settings, server_name: str | None = None) -> grpc.Channel:
    """A channel of the mesh. `server_name`: what to expect in the certificate when `address`
    is a number that was looked up; the setting wins. Raises `SettingsError` for TLS files
    that cannot be used."""
    tls = client_tls(settings)
    if tls is not None and tls.server_name is None:
        tls = ClientTls(tls.files, server_name)
    return channel(address, tls, channel_options(settings.max_message_bytes))


def channel(address: str, tls: ClientTls | None, options: Options) -> grpc.Channel:
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    if tls.server_name is not None:
        options = [*options, ("grpc.ssl_target_name_override", tls.server_name)]
    return grpc.secure_channel(address, tls.credentials(), options=options)


def listen(server: Any, bind: str, tls: ServerTls | None) -> int:
    """Let a grpc or grpc.aio server listen; its port. Raises `SettingsError`."""
    try:
        if tls is None:
            return int(server.add_insecure_port(bind))
        return int(server.add_secure_port(bind, tls.credentials()))
    except RuntimeError:
        raise SettingsError(f"cannot listen on {bind}: is another process using it?") from None


def token_metadata(token: str | None) -> tuple[tuple[str, str], ...]:
    return () if token is None else ((AUTHORIZATION, f"Bearer {token}"),)


def token_matches(metadata: Metadata, tokens: Sequence[str]) -> bool:
    """Whether the call carries one of `tokens`; compares in constant time."""
    given = next((v for k, v in metadata if k == AUTHORIZATION), "")
    offered = given if isinstance(given, bytes) else given.encode()
    matches = [hmac.compare_digest(offered, f"Bearer {token}".encode()) for token in tokens]
    return any(matches)


def require_token_off_loopback(bind: str, settings: Settings, variable: str) -> None:
    """Raise `SettingsError` when an internal port would be open to the network."""
    if not is_loopback(bind) and settings.mesh_token is None:
        raise SettingsError(
            f"{variable}={bind} can be reached from other machines: set SITS_MESH_TOKEN "
            "(the same on all services), or bind to 127.0.0.1"
        )


class Server:
    """A threaded gRPC server with health and, if wanted, reflection.

    Use as a context manager: entering starts it, leaving stops it.
    """

    def __init__(self, bind: str, settings: Settings, *, tokens: Sequence[str] = ()) -> None:
        self._bind, self._settings = bind, settings
        interceptors: list[Interceptor] = [ErrorInterceptor()]
        if tokens:
            interceptors.insert(0, TokenInterceptor(lambda given: token_matches(given, tokens)))
        self._server = grpc.server(
            futures.ThreadPoolExecutor(SERVER_THREADS, thread_name_prefix="grpc"),
            interceptors=interceptors,
            options=server_options(settings.max_message_bytes),
            maximum_concurrent_rpcs=SERVER_THREADS,
        )
        self._health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        self._names: list[str] = [health.SERVICE_NAME]
        self.port = 0

    def add(
        self, register: Callable[[Any, grpc.Server], None], servicer: object, name: str
    ) -> None:
        """Register a generated servicer; `name` is its full service name."""
        register(servicer, self._server)
        self._names.append(name)

    def add_handler(self, handler: "grpc.GenericRpcHandler[Any, Any]", name: str) -> None:
        self._server.add_generic_rpc_handlers((handler,))
        self._names.append(name)

    def set_ready(self, ready: bool) -> None:
        """What health checks say, of the server and of each of its services."""
        for name in ("", *self._names):
            self.set_service_ready(name, ready)

    def set_service_ready(self, name: str, ready: bool) -> None:
        """What health checks say of `name` alone."""
        answer = health_pb2.HealthCheckResponse
        self._health.set(name, answer.SERVING if ready else answer.NOT_SERVING)

    def start(self) -> None:
        if self._settings.reflection:
            reflection.enable_server_reflection(
                (*self._names, reflection.SERVICE_NAME), self._server
            )
        self.port = listen(self._server, self._bind, server_tls(self._settings))
        self.set_ready(False)
        self.set_service_ready(ALIVE, True)
        self._server.start()

    def stop(self, grace_s: float = 1.0) -> None:
        self._health.enter_graceful_shutdown()
        self._server.stop(grace_s).wait(grace_s + 1.0)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()
