"""TLS between services: who gets in, and certificates that change while serving."""

import http.client
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import CollectorRegistry, Counter

from sits_core import healthcheck
from sits_core.metrics import serve_metrics
from sits_core.rpc import Server, open_channel
from sits_core.settings import Settings, SettingsError
from sits_core.testing import wait_until
from sits_core.tls import client_tls, client_tls_from, metrics_tls, server_tls

YESTERDAY = {
    "not_before": datetime.now(UTC) - timedelta(days=2),
    "not_after": datetime.now(UTC) - timedelta(days=1),
}


@pytest.fixture
def serve() -> Iterator[Callable[..., str]]:
    """A ready server with these settings; its address."""
    with ExitStack() as servers:

        def start(**settings: Any) -> str:
            server = servers.enter_context(Server("127.0.0.1:0", Settings(**settings)))
            server.set_ready(True)
            return f"127.0.0.1:{server.port}"

        yield start


def ask(address: str, **settings: Any) -> str:
    """SERVING, or the status that the call failed with."""
    with open_channel(address, Settings(**settings)) as channel:
        try:
            status = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(), timeout=5
            )
        except grpc.RpcError as error:
            return str(error.code().name)
    return str(health_pb2.HealthCheckResponse.ServingStatus.Name(status.status))


def without_certificate(settings: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in settings.items() if k not in ("tls_cert_file", "tls_key_file")}


def test_services_with_certificates_of_one_ca_reach_each_other(serve, make_authority) -> None:
    ca = make_authority()
    address = serve(**ca.settings("server"))
    assert ask(address, **ca.settings("client")) == "SERVING"


def test_a_caller_without_a_certificate_is_refused(serve, make_authority) -> None:
    ca = make_authority()
    address = serve(**ca.settings())
    assert ask(address, **without_certificate(ca.settings())) == "UNAVAILABLE"
    assert ask(address) == "UNAVAILABLE"


def test_a_caller_without_a_certificate_may_be_let_in(serve, make_authority) -> None:
    ca = make_authority()
    address = serve(**ca.settings(), tls_require_client_cert=False)
    assert ask(address, **without_certificate(ca.settings())) == "SERVING"
    assert ask(address) == "UNAVAILABLE"


def test_a_certificate_of_another_ca_is_refused_by_both_sides(serve, make_authority) -> None:
    ours, theirs = make_authority(), make_authority()
    address = serve(**ours.settings())
    assert ask(address, **theirs.settings()) == "UNAVAILABLE"
    impostor = {**theirs.settings(), "tls_ca_file": str(ours.file)}
    assert ask(address, **impostor) == "UNAVAILABLE"
    distrustful = {**ours.settings(), "tls_ca_file": str(theirs.file)}
    assert ask(address, **distrustful) == "UNAVAILABLE"


def test_an_expired_certificate_is_refused_on_both_sides(serve, make_authority) -> None:
    ca = make_authority()
    fresh, old = ca.settings("fresh"), ca.settings("old", **YESTERDAY)
    assert ask(serve(**old), **fresh) == "UNAVAILABLE"
    assert ask(serve(**fresh), **old) == "UNAVAILABLE"


def test_a_certificate_must_carry_the_expected_name(serve, make_authority) -> None:
    ca = make_authority()
    address = serve(**ca.settings("server", "somebody-else"))
    assert ask(address, **ca.settings("client")) == "UNAVAILABLE"
    assert ask(address, **{**ca.settings("client"), "tls_server_name": "somebody-else"}) == (
        "SERVING"
    )


def test_without_a_common_name_the_host_that_is_called_counts(serve, make_authority) -> None:
    ca = make_authority()
    here = {**ca.settings("server", "127.0.0.1"), "tls_server_name": None}
    assert ask(serve(**here), **here) == "SERVING"
    with open_channel(serve(**ca.settings("other")), Settings(**here), "sits-mesh") as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        assert stub.Check(health_pb2.HealthCheckRequest(), timeout=5).status == healthcheck.SERVING


def test_renewed_certificates_are_used_without_a_restart(serve, make_authority) -> None:
    ca = make_authority()
    own = ca.settings("both", **YESTERDAY)
    address = serve(**own)
    assert ask(address, **own) == "UNAVAILABLE"
    ca.issue("both")
    assert ask(address, **own) == "SERVING"


def test_a_new_ca_is_used_without_a_restart(serve, make_authority) -> None:
    ours, theirs = make_authority(), make_authority()
    own = ours.settings()
    address = serve(**own)
    assert ask(address, **own) == "SERVING"
    cert, key = theirs.issue()
    for new, old in ((theirs.file, ours.file), (cert, own["tls_cert_file"])):
        Path(old).write_bytes(Path(new).read_bytes())
    # A certificate without its key is a replacement under way: the old pair stays in force.
    assert ask(address, **own) == "SERVING"
    Path(own["tls_key_file"]).write_bytes(Path(key).read_bytes())
    assert ask(address, **theirs.settings("client")) == "SERVING"


def test_files_that_vanish_leave_the_last_ones_in_force(serve, make_authority) -> None:
    ca = make_authority()
    own = ca.settings()
    address = serve(**own)
    assert ask(address, **own) == "SERVING"
    for path in (own["tls_cert_file"], own["tls_key_file"]):
        Path(path).unlink()
    assert ask(address, **own) == "SERVING"


@pytest.mark.parametrize("missing", ["tls_cert_file", "tls_key_file", "tls_ca_file"])
def test_half_a_set_of_files_is_refused(missing: str, make_authority) -> None:
    own = {**make_authority().settings(), missing: None}
    with pytest.raises(SettingsError, match="SITS_TLS_KEY_FILE"):
        server_tls(Settings(**own))


@pytest.mark.parametrize("broken", ["tls_cert_file", "tls_key_file", "tls_ca_file"])
@pytest.mark.parametrize("content", [None, b"", b"no certificate"])
def test_a_file_that_cannot_be_used_stops_the_start(
    broken: str, content: bytes | None, make_authority, tmp_path: Path
) -> None:
    path = tmp_path / "file.pem"
    if content is not None:
        path.write_bytes(content)
    own = {**make_authority().settings(), broken: str(path)}
    with pytest.raises(SettingsError, match=r"file\.pem"):
        Server("127.0.0.1:0", Settings(**own)).start()


def test_a_key_of_another_certificate_stops_the_start(make_authority) -> None:
    ca = make_authority()
    own = {**ca.settings("one"), "tls_key_file": ca.issue("two")[1]}
    with pytest.raises(SettingsError, match="MISMATCH"):
        Server("127.0.0.1:0", Settings(**own)).start()


def test_nothing_set_means_plain() -> None:
    assert server_tls(Settings()) is None
    assert client_tls(Settings()) is None
    assert client_tls_from({"SITS_TLS_CA_FILE": ""}) is None


def test_a_command_needs_no_more_than_the_ca(serve, make_authority) -> None:
    ca = make_authority()
    address = serve(**ca.settings(), tls_require_client_cert=False)
    environ = {"SITS_TLS_CA_FILE": str(ca.file), "SITS_TLS_SERVER_NAME": "sits-mesh"}
    assert healthcheck.ready(address, 5, client_tls_from(environ))


# Metrics over HTTPS


def scrape(port: int, context: ssl.SSLContext | None) -> int:
    kind = http.client.HTTPSConnection if context else http.client.HTTPConnection
    options = {"context": context} if context else {}
    with closing(kind("localhost", port, timeout=5, **options)) as connection:
        connection.request("GET", "/metrics")
        return connection.getresponse().status


def browser(ca: Path, pair: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(ca))
    if pair is not None:
        context.load_cert_chain(*pair)
    return context


def test_metrics_want_a_certificate_too(make_authority) -> None:
    ca = make_authority()
    settings = Settings(**ca.settings("server", "localhost"))
    registry = CollectorRegistry()
    Counter("sits_test", "one", registry=registry)
    server = serve_metrics("127.0.0.1:0", registry, metrics_tls(settings))
    try:
        assert scrape(server.server_port, browser(ca.file, ca.issue("client"))) == 200
        with pytest.raises((OSError, http.client.HTTPException)):
            scrape(server.server_port, browser(ca.file))
        with pytest.raises((OSError, http.client.HTTPException)):
            scrape(server.server_port, None)
    finally:
        server.shutdown()


def test_http_takes_renewed_certificates_too(make_authority) -> None:
    ca = make_authority()
    settings = Settings(**ca.settings("server", "localhost", **YESTERDAY))
    server = serve_metrics("127.0.0.1:0", CollectorRegistry(), metrics_tls(settings))
    client = browser(ca.file, ca.issue("client"))
    try:
        with pytest.raises(ssl.SSLCertVerificationError, match="expired"):
            scrape(server.server_port, client)
        ca.issue("server", "localhost")
        assert scrape(server.server_port, client) == 200
    finally:
        server.shutdown()


def test_metrics_may_stay_plain(make_authority) -> None:
    settings = Settings(**make_authority().settings(), tls_metrics=False)
    assert metrics_tls(settings) is None
    assert server_tls(settings) is not None


# The probe of containers


@pytest.fixture
def plain(serve) -> str:
    return serve()


def test_a_probe_succeeds_where_the_service_is_ready(plain: str) -> None:
    assert healthcheck.main([plain]) == 0


def test_a_probe_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    with Server("127.0.0.1:0", Settings()) as server:
        address = f"127.0.0.1:{server.port}"
        assert healthcheck.main([address]) == 1
        assert "NOT_SERVING" in capsys.readouterr().err
        assert healthcheck.main([address, "--alive"]) == 0
        assert healthcheck.main([address, "--service", "nobody"]) == 1
        assert "NOT_FOUND" in capsys.readouterr().err
    wait_until(lambda: healthcheck.main([address, "--timeout", "0.2"]) == 1)
    assert "UNAVAILABLE" in capsys.readouterr().err


def test_a_probe_finds_its_certificate_in_the_environment(
    serve, make_authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_authority().settings()
    address = serve(**settings)
    assert healthcheck.main([address, "--timeout", "1"]) == 1
    for name, value in settings.items():
        monkeypatch.setenv(f"SITS_{name.upper()}", value)
    assert healthcheck.main([address]) == 0
