"""TLS of the front port: the mesh's certificate, or one of its own for clients outside."""

from sits_core.settings import SettingsError
from sits_core.tls import ServerTls, TlsFiles, require_pair, server_tls
from sits_preprocess.settings import PreprocessSettings

CERT, KEY = "SITS_PREPROCESS_TLS_CERT_FILE", "SITS_PREPROCESS_TLS_KEY_FILE"
CA, REQUIRE = "SITS_PREPROCESS_TLS_CA_FILE", "SITS_PREPROCESS_TLS_REQUIRE_CLIENT_CERT"


def front_tls(settings: PreprocessSettings) -> ServerTls | None:
    """None = plain. What is not set for the front port is as for the mesh. Raises
    `SettingsError` for half a set, and for a transport that has no TLS."""
    if settings.preprocess_tls == "off":
        return None
    tls = _with_own(server_tls(settings), settings)
    if tls is not None and settings.preprocess_transport == "native":
        raise SettingsError(
            "SITS_PREPROCESS_TRANSPORT=native has no TLS: use grpcio or auto, or "
            "SITS_PREPROCESS_TLS=off behind a proxy that ends it"
        )
    return tls


def _with_own(mesh: ServerTls | None, settings: PreprocessSettings) -> ServerTls | None:
    own = TlsFiles(settings.preprocess_tls_cert_file, settings.preprocess_tls_key_file)
    require_pair(own, CERT, KEY)
    pair = own if own.cert is not None else mesh.files if mesh is not None else None
    required = settings.preprocess_tls_require_client_cert
    if pair is None:
        if settings.preprocess_tls_ca_file is not None or required:
            raise SettingsError(f"{CA} and {REQUIRE} need a certificate: set {CERT} and {KEY}")
        return None
    ca = settings.preprocess_tls_ca_file or (mesh.files.ca if mesh is not None else None)
    asks = _asks(mesh, settings) if required is None else required
    if asks and ca is None:
        raise SettingsError(f"{REQUIRE} needs the CA of the clients: set {CA}")
    return ServerTls(TlsFiles(pair.cert, pair.key, ca), asks)


def _asks(mesh: ServerTls | None, settings: PreprocessSettings) -> bool:
    """Whether clients need a certificate when nothing says so: a CA named for them does."""
    if settings.preprocess_tls_ca_file is not None:
        return True
    return mesh is not None and mesh.require_client_cert
