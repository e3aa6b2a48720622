"""gRPC servers and channels of the mesh, over real connections."""

import contextlib
import hmac
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import structlog
from grpc._cython import cygrpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from sits_core import rpc
from sits_core.errors import MAX_MESSAGE_BYTES, DeadlineExceeded, NotFound, SitsError, from_rpc
from sits_core.rpc import Server, channel_options, open_channel, server_options
from sits_core.settings import Settings, SettingsError
from sits_core.testing import wait_until

SETTINGS = Settings()
SERVICE = "test.Service"
Behaviour = Callable[[Any, grpc.ServicerContext], Any]
KINDS = {
    "unary_unary": grpc.unary_unary_rpc_method_handler,
    "unary_stream": grpc.unary_stream_rpc_method_handler,
    "stream_unary": grpc.stream_unary_rpc_method_handler,
    "stream_stream": grpc.stream_stream_rpc_method_handler,
}


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """Starts a server with one method a kind, all with the same behaviour; its address."""
    with contextlib.ExitStack() as servers:

        def start(behaviour: Behaviour, tokens: tuple[str, ...] = (), **settings: object) -> str:
            server = Server("127.0.0.1:0", Settings.model_validate(settings), tokens=tokens)
            methods = {
                kind: make(streamed(behaviour) if kind.endswith("stream") else behaviour)
                for kind, make in KINDS.items()
            }
            server.add_handler(grpc.method_handlers_generic_handler(SERVICE, methods), SERVICE)
            servers.enter_context(server)
            server.set_ready(True)
            return f"127.0.0.1:{server.port}"

        yield start


def streamed(behaviour: Behaviour) -> Behaviour:
    def stream(request: object, context: grpc.ServicerContext) -> Iterator[bytes]:
        yield behaviour(request, context)

    return stream


def echo(request: bytes | Iterator[bytes], _context: grpc.ServicerContext) -> bytes:
    return request if isinstance(request, bytes) else b"".join(request)


def raises(error: Exception) -> Behaviour:
    def behaviour(_request: object, _context: grpc.ServicerContext) -> bytes:
        raise error

    return behaviour


def call(
    channel: grpc.Channel, kind: str = "unary_unary", request: bytes = b"x", **options: Any
) -> bytes:
    stub = getattr(channel, kind)(f"/{SERVICE}/{kind}", None, None)
    given = iter([request]) if kind.startswith("stream") else request
    answer = stub(given, timeout=10, **options)
    return answer if isinstance(answer, bytes) else b"".join(answer)


def refusal(address: str, kind: str = "unary_unary", **options: Any) -> grpc.RpcError:
    with open_channel(address, SETTINGS) as channel, pytest.raises(grpc.RpcError) as caught:
        call(channel, kind, **options)
    return caught.value


# Tokens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Bearer wrong"),),
        (("authorization", "secret"),),
        (("authorization", "Bearer "),),
        (("authorization", "Bearer secret-and-more"),),
        (("authorization-bin", b"Bearer secret"),),
    ],
)
def test_a_call_without_a_token_is_refused(
    serve: Callable[..., str], kind: str, metadata: tuple[tuple[str, str], ...]
) -> None:
    address = serve(echo, tokens=("secret", "other"))
    assert refusal(address, kind, metadata=metadata).code() is grpc.StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("token", ["secret", "other"])
def test_any_of_the_tokens_opens(serve: Callable[..., str], kind: str, token: str) -> None:
    address = serve(echo, tokens=("secret", "other"))
    with open_channel(address, SETTINGS) as channel:
        assert call(channel, kind, metadata=rpc.token_metadata(token)) == b"x"


def test_without_tokens_everybody_may_call(serve: Callable[..., str]) -> None:
    with open_channel(serve(echo), SETTINGS) as channel:
        assert call(channel) == b"x"


def test_a_refused_call_is_answered_before_its_message_is_sent(serve: Callable[..., str]) -> None:
    entered = threading.Event()

    def never_ending() -> Iterator[bytes]:
        entered.wait(30)
        yield b"x"

    with open_channel(serve(echo, tokens=("secret",)), SETTINGS) as channel:
        stub = channel.stream_unary(f"/{SERVICE}/stream_unary", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            stub(never_ending(), timeout=10)
    entered.set()
    assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_unknown_methods_tell_nothing_to_strangers(serve: Callable[..., str]) -> None:
    address = serve(echo, tokens=("secret",))
    with open_channel(address, SETTINGS) as channel:
        stub = channel.unary_unary("/no.Such/Method", None, None)
        with pytest.raises(grpc.RpcError) as caught:
            stub(b"", timeout=10)
        assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        with pytest.raises(grpc.RpcError) as caught:
            stub(b"", timeout=10, metadata=rpc.token_metadata("secret"))
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def spy(given: bytes, expected: bytes) -> bool:
        compared.append(expected)
        return original(given, expected)

    original = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", spy)
    assert rpc.token_matches([("authorization", "Bearer a")], ["a", "b"])
    assert compared == [b"Bearer a", b"Bearer b"]


def test_an_internal_port_off_loopback_needs_a_token() -> None:
    with pytest.raises(SettingsError, match=r"SITS_X_BIND=0\.0\.0\.0:1 .*SITS_MESH_TOKEN"):
        rpc.require_token_off_loopback("0.0.0.0:1", Settings(), "SITS_X_BIND")
    rpc.require_token_off_loopback("127.0.0.1:1", Settings(), "SITS_X_BIND")
    open_bind = Settings.model_validate({"mesh_token": "secret"})
    rpc.require_token_off_loopback("0.0.0.0:1", open_bind, "SITS_X_BIND")


# Health and reflection


def test_health_needs_no_token_and_follows_readiness(serve: Callable[..., str]) -> None:
    with open_channel(serve(echo, tokens=("secret",)), SETTINGS) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        for name in ("", SERVICE):
            answer = stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        with pytest.raises(grpc.RpcError) as caught:
            stub.Check(health_pb2.HealthCheckRequest(service="no.such"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_a_server_is_not_ready_until_told_and_again_when_it_stops() -> None:
    server = Server("127.0.0.1:0", SETTINGS)
    serving = health_pb2.HealthCheckResponse
    with server, open_channel(f"127.0.0.1:{server.port}", SETTINGS) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest(), timeout=30
        )
        assert next(watch).status == serving.NOT_SERVING
        server.set_ready(True)
        assert next(watch).status == serving.SERVING
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        assert next(watch).status == serving.NOT_SERVING
        stopping.join()


def reflected(address: str) -> list[str]:
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    with open_channel(address, SETTINGS) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        (answer,) = stub.ServerReflectionInfo(iter([request]), timeout=10)
        return [service.name for service in answer.list_services_response.service]


def test_reflection_is_off_unless_wanted(serve: Callable[..., str]) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        reflected(serve(echo))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert SERVICE in reflected(serve(echo, reflection=True))


# Errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [NotFound("no model 'é'"), DeadlineExceeded("too late")])
def test_our_errors_arrive_with_status_and_text(
    serve: Callable[..., str], kind: str, error: SitsError
) -> None:
    answer = refusal(serve(raises(error)), kind)
    assert (answer.code(), answer.details()) == (error.status, str(error))
    assert isinstance(from_rpc(answer), type(error))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", [ValueError("/etc/secret"), Exception("/etc/secret")])
def test_unknown_errors_are_internal_without_detail_and_logged(
    serve: Callable[..., str], kind: str, error: Exception
) -> None:
    address = serve(raises(error))
    with structlog.testing.capture_logs() as lines:
        answers = [refusal(address, kind) for _ in range(3)]
    assert {answer.code() for answer in answers} == {grpc.StatusCode.INTERNAL}
    assert {answer.details() for answer in answers} == {"internal error"}
    (line,) = [line for line in lines if line["event"] == "rpc.failed"]
    assert (line["method"], line["error"]) == (f"/{SERVICE}/{kind}", type(error).__name__)
    assert line["exc_info"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_failing_call_of_ours_does_not_show_its_inside(
    serve: Callable[..., str], kind: str
) -> None:
    inner = serve(raises(NotFound("inside")))

    def behaviour(_request: object, _context: grpc.ServicerContext) -> bytes:
        with open_channel(inner, SETTINGS) as channel:
            return call(channel)

    answer = refusal(serve(behaviour), kind)
    assert (answer.code(), answer.details()) == (grpc.StatusCode.INTERNAL, "internal error")


@pytest.mark.parametrize("kind", KINDS)
def test_an_abort_of_the_handler_stays_as_it_is(serve: Callable[..., str], kind: str) -> None:
    def behaviour(_request: object, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.DATA_LOSS, "own words")

    answer = refusal(serve(behaviour), kind)
    assert (answer.code(), answer.details()) == (grpc.StatusCode.DATA_LOSS, "own words")


def test_a_caller_who_leaves_is_no_failure(serve: Callable[..., str]) -> None:
    entered, left = threading.Event(), threading.Event()

    def behaviour(requests: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        context.add_callback(left.set)
        entered.set()
        return b"".join(requests)

    address = serve(behaviour)

    def silent() -> Iterator[bytes]:
        left.wait(30)
        yield from ()

    with structlog.testing.capture_logs() as lines, open_channel(address, SETTINGS) as channel:
        pending = channel.stream_unary(f"/{SERVICE}/stream_unary", None, None).future(silent())
        assert entered.wait(10)
        pending.cancel()
        assert left.wait(10)
    assert [line for line in lines if line["event"] == "rpc.failed"] == []


LONG = "line one\nline two 100 % naïve “quotes” 日本 \x00 " * 1000


@pytest.mark.parametrize("kind", KINDS)
def test_a_long_text_is_cut_and_arrives(serve: Callable[..., str], kind: str) -> None:
    assert len(LONG) > 40_000
    answer = refusal(serve(raises(NotFound(LONG))), kind)
    text = answer.details()
    assert answer.code() is grpc.StatusCode.NOT_FOUND
    assert text.startswith("line one line two 100 % naïve “quotes” 日本 ")
    assert len(text.encode()) <= MAX_MESSAGE_BYTES
    assert text.isprintable()
    assert text.endswith("…")


# Metadata


def test_large_metadata_is_read_and_too_large_metadata_refused_alone(
    serve: Callable[..., str],
) -> None:
    seen: list[int] = []

    def behaviour(_request: bytes, context: grpc.ServicerContext) -> bytes:
        seen.append(len(list(context.invocation_metadata())))
        return b"fine"

    with open_channel(serve(behaviour), SETTINGS) as channel:
        assert call(channel, metadata=[(f"key-{n}", "v" * 20) for n in range(200)]) == b"fine"
        assert seen[-1] >= 200
        assert call(channel, metadata=[("authorization", "Bearer " + "x" * 12_000)]) == b"fine"
        assert call(channel, metadata=[("tracestate", "a=" + "x" * 4000)]) == b"fine"
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, metadata=[("authorization", "Bearer " + "x" * 100_000)])
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(channel) == b"fine"
    assert len(seen) == 4


def test_a_message_above_the_limit_is_refused_alone(serve: Callable[..., str]) -> None:
    address = serve(echo, max_message_bytes=1 << 20)
    with open_channel(address, SETTINGS) as channel:
        with pytest.raises(grpc.RpcError) as caught:
            call(channel, request=bytes(2 << 20))
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert len(call(channel, request=bytes(1 << 19))) == 1 << 19


# Deadlines and connections


@pytest.mark.parametrize("given_s", [None, 10.0, 31_536_000.0])
def test_a_deadline_of_any_length_reaches_the_handler(
    serve: Callable[..., str], given_s: float | None
) -> None:
    left: list[float | None] = []

    def behaviour(_request: bytes, context: grpc.ServicerContext) -> bytes:
        left.append(context.time_remaining())
        return b""

    with open_channel(serve(behaviour), SETTINGS) as channel:
        channel.unary_unary(f"/{SERVICE}/unary_unary", None, None)(b"", timeout=given_s)
    if given_s is None:
        assert left[0] is None or left[0] > 31_536_000
    else:
        assert left[0] is not None
        # gRPC sends eight digits at most: a year is rounded up to whole hours.
        assert given_s - 9 < left[0] <= given_s * 1.01


def test_a_taken_port_is_named(serve: Callable[..., str]) -> None:
    address = serve(echo)
    with pytest.raises(SettingsError, match=address):
        Server(address, SETTINGS).start()


def test_a_proxy_of_the_environment_is_not_used(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with monkeypatch.context() as direct:
        direct.delenv("no_proxy", raising=False)
        direct.delenv("NO_PROXY", raising=False)
        with open_channel(serve(echo), SETTINGS) as channel:
            assert call(channel) == b"x"


def test_unix_sockets_work(tmp_path: Path) -> None:
    path = f"unix:{tmp_path}/sits.sock"
    server = Server(path, SETTINGS)
    server.add_handler(
        grpc.method_handlers_generic_handler(
            SERVICE, {"unary_unary": grpc.unary_unary_rpc_method_handler(echo)}
        ),
        SERVICE,
    )
    with server, open_channel(path, SETTINGS) as channel:
        assert call(channel) == b"x"


# Keepalive


def test_clients_may_ping_every_ten_seconds_and_ours_ping_less_often() -> None:
    server = dict(server_options(1))
    client = dict(channel_options(1))
    allowed = server["grpc.http2.min_ping_interval_without_data_ms"]
    assert isinstance(allowed, int)
    assert allowed < 10_000 < client["grpc.keepalive_time_ms"]  # type: ignore[operator]
    assert server["grpc.keepalive_permit_without_calls"] == 1
    assert client["grpc.keepalive_permit_without_calls"] == 1


def test_gRPC_knows_every_option_that_is_set() -> None:
    """It ignores unknown ones without a word."""
    library = Path(cygrpc.__file__).read_bytes()
    for name, _ in (*server_options(1), *channel_options(1)):
        assert name.encode() + b"\0" in library, name


def ping_every(milliseconds: int, address: str) -> grpc.Channel:
    options = [
        ("grpc.keepalive_time_ms", milliseconds),
        ("grpc.keepalive_timeout_ms", 5_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    return grpc.insecure_channel(address, options)


def idle_stream(channel: grpc.Channel) -> tuple[Any, threading.Event]:
    """A stream without traffic, and an event for its end."""
    ended = threading.Event()
    stub = channel.stream_stream(f"/{SERVICE}/stream_stream", None, None)

    def silent() -> Iterator[bytes]:
        ended.wait(60)
        yield from ()

    stream = stub(silent())
    stream.add_callback(ended.set)
    return stream, ended


def test_a_client_that_pings_every_100_ms_is_shut_out(serve: Callable[..., str]) -> None:
    with ping_every(100, serve(echo)) as channel:
        stream, ended = idle_stream(channel)
        assert ended.wait(30)
        assert stream.code() is grpc.StatusCode.UNAVAILABLE
        assert "too many pings" in stream.details().lower().replace("_", " ")


def test_a_client_that_pings_as_often_as_allowed_is_not(
    serve: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In small: the server allows a ping every 500 ms, the client sends one every second. The
    fourth ping is the third strike where they come too often."""
    scaled = [
        (name, 500 if name == "grpc.http2.min_ping_interval_without_data_ms" else value)
        for name, value in server_options(1 << 20)
    ]
    monkeypatch.setattr(rpc, "server_options", lambda _bytes: scaled)
    with ping_every(1000, serve(echo)) as channel:
        stream, ended = idle_stream(channel)
        assert not ended.wait(6)
        assert call(channel) == b"x"
        stream.cancel()
        wait_until(ended.is_set)
