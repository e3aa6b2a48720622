"""TLS of every hop: which files a port or a client uses, and reading them again when they change.

Certificates are looked at for each new connection, so a renewed one needs no restart. Files
that do not fit together, as in the middle of a replacement, leave the last good ones in force.
"""

import ssl
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import grpc
import structlog

from sits_core.logs import RateLimited
from sits_core.settings import Settings, SettingsError

log = structlog.get_logger()

Stamp = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files. `cert` and `key` come together; `ca` signs the certificates of the peers."""

    cert: str | None = None
    key: str | None = None
    ca: str | None = None


@dataclass(frozen=True, slots=True)
class ServerTls:
    """How a port answers. `require_client_cert`: callers without one of `files.ca` are refused."""

    files: TlsFiles
    require_client_cert: bool = True

    def credentials(self) -> grpc.ServerCredentials:
        """For gRPC. Raises `SettingsError` when the files do not fit together."""
        watched = Watched(self.files)
        return grpc.dynamic_ssl_server_credentials(
            self._configuration(watched.now()),
            # None = as before, which the stubs do not know.
            lambda: self._configuration(pem) if (pem := watched.newer()) else None,  # type: ignore[arg-type,return-value]
            require_client_authentication=self.require_client_cert,
        )

    def _configuration(self, pem: "Pem") -> grpc.ServerCertificateConfiguration:
        ca = pem.ca if self.require_client_cert else None
        return grpc.ssl_server_certificate_configuration([(pem.key, pem.cert)], ca)

    def context(self) -> ssl.SSLContext:
        """For HTTP. Raises `SettingsError` when the files do not fit together."""
        watched = Watched(self.files)
        watched.now()
        outer = newest = self._context()

        def choose(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            nonlocal newest
            if watched.newer() is not None:
                newest = self._context()
            connection.context = newest

        outer.sni_callback = choose
        return outer

    def _context(self) -> ssl.SSLContext:
        return _context_of(self.files, self.require_client_cert)


@dataclass(frozen=True, slots=True)
class ClientTls:
    """How we call others. `server_name` is the name that their certificate must carry; None =
    the host that is called."""

    files: TlsFiles
    server_name: str | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        """From the files as they are now. Raises `SettingsError` if they never fitted."""
        pem = _watched(self.files).now()
        return grpc.ssl_channel_credentials(pem.ca or None, pem.key or None, pem.cert or None)


class Pem(NamedTuple):
    """The bytes of the files; empty for one that is not used."""

    cert: bytes
    key: bytes
    ca: bytes


class Watched:
    """What a set of files holds. Safe from any thread."""

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._lock = threading.Lock()
        self._may_log = RateLimited()
        self._stamp: Stamp = ()
        self._pem: Pem | None = None
        self._problem = "they change all the time"

    def now(self) -> Pem:
        """The newest good contents. Raises `SettingsError` while there were none yet."""
        newer = self.newer()
        if self._pem is None:
            files = ", ".join(_used(self._files))
            raise SettingsError(f"the TLS files {files} cannot be used: {self._problem}")
        return newer or self._pem

    def newer(self) -> Pem | None:
        """The contents if they changed since the last call and fit together, else None."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp == self._stamp:
                    return None
                pem = _read(self._files)
                if stamp != self._look():
                    return None  # changed while it was read: the next connection tries again
            except OSError as error:  # SSLError is one
                self._report(error)
                return None
            self._stamp, self._pem = stamp, pem
            return pem

    def _look(self) -> Stamp:
        found = (Path(path).stat() for path in _used(self._files))
        return tuple((s.st_mtime_ns, s.st_size, s.st_ino) for s in found)

    def _report(self, error: OSError) -> None:
        self._problem = str(error)
        if self._pem is not None and (held := self._may_log("tls")) is not None:
            files = _used(self._files)
            log.warning("tls.not_reloaded", files=files, error=str(error), suppressed=held)


@lru_cache(maxsize=16)
def _watched(files: TlsFiles) -> Watched:
    """Channels are opened again and again; the last good contents outlive them."""
    return Watched(files)


def _used(files: TlsFiles) -> list[str]:
    return [path for path in (files.cert, files.key, files.ca) if path is not None]


def _read(files: TlsFiles) -> Pem:
    """Raises `OSError`, of which SSLError is one, when they cannot be used together."""
    _context_of(files, files.ca is not None)
    cert, key, ca = (
        Path(path).read_bytes() if path is not None else b""
        for path in (files.cert, files.key, files.ca)
    )
    return Pem(cert, key, ca)


def _context_of(files: TlsFiles, verify: bool) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if files.cert is not None:
        # A password keeps an encrypted key from asking on the terminal.
        context.load_cert_chain(files.cert, files.key, password="")
    if verify:
        context.load_verify_locations(files.ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


# What the settings say


def server_tls(settings: Settings) -> ServerTls | None:
    """TLS of the mesh's own ports; None = plain. Raises `SettingsError` for half a set."""
    files = mesh_files(settings)
    if files is None:
        return None
    if files.cert is None or files.ca is None:
        raise SettingsError(
            "TLS needs all of SITS_TLS_CERT_FILE, SITS_TLS_KEY_FILE and SITS_TLS_CA_FILE "
            "on a service"
        )
    return ServerTls(files, settings.tls_require_client_cert)


def metrics_tls(settings: Settings) -> ServerTls | None:
    return server_tls(settings) if settings.tls_metrics else None


def client_tls(settings: Settings) -> ClientTls | None:
    """TLS of calls to other services; None = plain. A CA alone is enough for a caller that
    needs no certificate."""
    files = mesh_files(settings)
    return None if files is None else ClientTls(files, settings.tls_server_name)


def client_tls_from(environ: Mapping[str, str]) -> ClientTls | None:
    """As `client_tls`, for a command that has no settings of its own."""
    cert, key, ca, name = (
        environ.get(f"SITS_TLS_{variable}") or None
        for variable in ("CERT_FILE", "KEY_FILE", "CA_FILE", "SERVER_NAME")
    )
    files = _checked(TlsFiles(cert, key, ca))
    return None if files is None else ClientTls(files, name)


def mesh_files(settings: Settings) -> TlsFiles | None:
    files = TlsFiles(settings.tls_cert_file, settings.tls_key_file, settings.tls_ca_file)
    return _checked(files)


def _checked(files: TlsFiles) -> TlsFiles | None:
    if not _used(files):
        return None
    require_pair(files, "SITS_TLS_CERT_FILE", "SITS_TLS_KEY_FILE")
    return files


def require_pair(files: TlsFiles, cert_variable: str, key_variable: str) -> None:
    if (files.cert is None) != (files.key is None):
        raise SettingsError(f"{cert_variable} and {key_variable} come together: set both or none")
