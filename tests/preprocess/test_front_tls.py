"""TLS of the front port, for unmodified clients, with and without that of the mesh."""

from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_core.settings import SettingsError
from sits_core.testing import wait_until
from sits_preprocess.front import transport_name
from sits_preprocess.front_tls import front_tls
from sits_preprocess.settings import PreprocessSettings

OWN = ("preprocess_tls_cert_file", "preprocess_tls_key_file")


@pytest.fixture
def transport() -> str:
    """Only this one has TLS."""
    return "grpcio"


def client(port: int, ca: Any, pair: tuple[str, str] | None = None) -> triton.InferenceServerClient:
    cert, key = pair or (None, None)
    return triton.InferenceServerClient(
        f"127.0.0.1:{port}",
        ssl=True,
        root_certificates=str(ca.file),
        certificate_chain=cert,
        private_key=key,
    )


def is_live(port: int, ca: Any, pair: tuple[str, str] | None = None) -> bool:
    with client(port, ca, pair) as opened:
        try:
            return bool(opened.is_server_live(client_timeout=5))
        except InferenceServerException:
            return False


def settings(**values: Any) -> PreprocessSettings:
    return PreprocessSettings(**values)


def own_pair(ca: Any) -> dict[str, str]:
    return dict(zip(OWN, ca.issue("front", "127.0.0.1"), strict=True))


def test_clients_need_a_certificate_when_the_mesh_has_tls(serve, make_authority) -> None:
    ca = make_authority()
    port = serve(**ca.settings("own", "127.0.0.1")).front.transport.port
    assert is_live(port, ca, ca.issue("client"))
    assert not is_live(port, ca)


def test_the_front_may_have_a_certificate_of_its_own(serve, make_authority) -> None:
    mesh, public = make_authority(), make_authority()
    values = {**mesh.settings(), **own_pair(public), "preprocess_tls_require_client_cert": False}
    port = serve(**values).front.transport.port
    assert is_live(port, public)
    assert not is_live(port, mesh)


def test_the_front_may_have_tls_alone_and_ask_nothing_of_clients(serve, make_authority) -> None:
    ca = make_authority()
    assert is_live(serve(**own_pair(ca)).front.transport.port, ca)


def test_a_ca_for_clients_makes_them_need_a_certificate(serve, make_authority) -> None:
    front, clients = make_authority(), make_authority()
    values = {**own_pair(front), "preprocess_tls_ca_file": str(clients.file)}
    port = serve(**values).front.transport.port
    assert is_live(port, front, clients.issue("client"))
    assert not is_live(port, front, front.issue("client"))
    assert not is_live(port, front)


def test_certificates_are_renewed_without_a_restart(serve, make_authority) -> None:
    ca = make_authority()
    port = serve(**own_pair(ca)).front.transport.port
    assert is_live(port, ca)
    ca.issue("front", "somebody-else")
    assert not is_live(port, ca)
    ca.issue("front", "127.0.0.1")
    assert is_live(port, ca)


def test_the_front_may_stay_plain_behind_a_proxy(make_authority) -> None:
    assert front_tls(settings(**make_authority().settings(), preprocess_tls="off")) is None


def test_the_native_transport_is_refused(make_authority) -> None:
    ca = make_authority()
    with pytest.raises(SettingsError, match="SITS_PREPROCESS_TRANSPORT=native has no TLS"):
        front_tls(settings(**own_pair(ca), preprocess_transport="native"))
    plain = settings(**ca.settings(), preprocess_transport="native", preprocess_tls="off")
    assert front_tls(plain) is None


def test_the_transport_follows_what_is_asked_for(make_authority) -> None:
    tls = front_tls(settings(**own_pair(make_authority())))
    assert tls is not None
    assert transport_name(settings(), None) == "native"
    assert transport_name(settings(), tls) == "grpcio"
    assert transport_name(settings(preprocess_max_connection_age_s=60), None) == "grpcio"
    assert transport_name(settings(preprocess_transport="grpcio"), None) == "grpcio"


@pytest.mark.parametrize("name", OWN)
def test_half_a_pair_is_refused(name: str) -> None:
    with pytest.raises(SettingsError, match="SITS_PREPROCESS_TLS_CERT_FILE"):
        front_tls(settings(**{name: "x.pem"}))


@pytest.mark.parametrize(
    "values", [{"preprocess_tls_ca_file": "x"}, {"preprocess_tls_require_client_cert": True}]
)
def test_a_demand_on_clients_without_tls_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(SettingsError, match="need a certificate"):
        front_tls(settings(**values))


def test_client_certificates_need_a_ca(make_authority) -> None:
    values = {**own_pair(make_authority()), "preprocess_tls_require_client_cert": True}
    with pytest.raises(SettingsError, match="SITS_PREPROCESS_TLS_CA_FILE"):
        front_tls(settings(**values))


def test_clients_are_asked_to_connect_again_now_and_then(serve) -> None:
    """How they find new front doors behind one name."""
    served = serve(preprocess_max_connection_age_s=0.2)
    seen: list[grpc.ChannelConnectivity] = []
    with grpc.insecure_channel(served.address) as channel:
        channel.subscribe(seen.append, try_to_connect=True)
        wait_until(lambda: grpc.ChannelConnectivity.READY in seen)
        wait_until(lambda: seen[-1] == grpc.ChannelConnectivity.IDLE)


def test_the_native_transport_cannot_ask_them(serve) -> None:
    with pytest.raises(SettingsError, match="MAX_CONNECTION_AGE"):
        serve(preprocess_max_connection_age_s=1, preprocess_transport="native")
