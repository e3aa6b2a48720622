"""Reads the standard OTEL_ variables: what is sampled, and where spans go.

A wrong one never stops a service: `OtelError` names it and what it expects.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from sits_core.tracing import Tracer

Environ = Mapping[str, str]


class OtelError(Exception):
    """An OTEL_ variable is wrong; the text names it."""


class Protocol(StrEnum):
    GRPC = "grpc"
    HTTP = "http/protobuf"


DEFAULT_PORTS = {Protocol.GRPC: 4317, Protocol.HTTP: 4318}


@dataclass(frozen=True, slots=True)
class Target:
    """A collector. `url` is scheme://host:port for gRPC, the full address for HTTP."""

    protocol: Protocol
    url: str
    hint: str = ""

    @property
    def secure(self) -> bool:
        return self.url.startswith("https://")


def target(environ: Environ) -> Target | None:
    """Where spans go; None when no endpoint is set or export is switched off."""
    name, raw = _first(environ, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
    if not raw or _disabled(environ) or environ.get("OTEL_TRACES_EXPORTER") == "none":
        return None
    _check_files(environ)
    url = _split(name, raw, environ)
    protocol = _protocol(environ, url)
    if protocol is Protocol.GRPC:
        return Target(protocol, f"{url.scheme}://{url.netloc}", _hint(protocol, url))
    path = url.path if "TRACES" in name else f"{url.path.rstrip('/')}/v1/traces"
    return Target(protocol, url._replace(path=path).geturl(), _hint(protocol, url))


def apply_sampler(tracer: Tracer, environ: Environ) -> None:
    """Let OTEL_TRACES_SAMPLER, where set, overrule the tracer's ratio."""
    if _disabled(environ):
        tracer.enabled = False
    sampler = environ.get("OTEL_TRACES_SAMPLER", "").strip().lower()
    if not sampler:
        return
    kind = sampler.removeprefix("parentbased_")
    if kind not in ("always_on", "always_off", "traceidratio"):
        raise OtelError(
            f"OTEL_TRACES_SAMPLER={sampler}: expected always_on, always_off, traceidratio, "
            "or one of them after parentbased_"
        )
    tracer.ratio = _ratio(environ) if kind == "traceidratio" else float(kind == "always_on")
    tracer.caller_decides = kind != sampler


def _ratio(environ: Environ) -> float:
    raw = environ.get("OTEL_TRACES_SAMPLER_ARG", "") or "1"
    try:
        ratio = float(raw)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        raise OtelError(f"OTEL_TRACES_SAMPLER_ARG={raw}: expected a number from 0 to 1")
    return ratio


def _disabled(environ: Environ) -> bool:
    return environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _split(name: str, raw: str, environ: Environ) -> SplitResult:
    """`raw` with scheme and port."""
    text = raw if "://" in raw else f"{_scheme(environ)}://{raw}"
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        url, port = SplitResult("", "", "", "", ""), None
    if url.scheme not in ("http", "https") or not url.hostname:
        raise OtelError(f"{name}={raw}: expected host:port, http://host:port or https://host:port")
    if port is None:
        url = url._replace(netloc=f"{url.netloc}:{DEFAULT_PORTS[_protocol(environ, url)]}")
    return url


def _scheme(environ: Environ) -> str:
    """Without one in the endpoint: plain, unless TLS is asked for or a CA is named."""
    _, insecure = _first(
        environ, "OTEL_EXPORTER_OTLP_TRACES_INSECURE", "OTEL_EXPORTER_OTLP_INSECURE"
    )
    _, ca = _first(
        environ, "OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"
    )
    secure = insecure.lower() == "false" if insecure else bool(ca)
    return "https" if secure else "http"


def _protocol(environ: Environ, url: SplitResult) -> Protocol:
    """The one named; without a name, the one whose port or path the endpoint has."""
    name, raw = _first(environ, "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
    if not raw:
        http = url.port == DEFAULT_PORTS[Protocol.HTTP] or url.path.endswith("/v1/traces")
        return Protocol.HTTP if http else Protocol.GRPC
    try:
        return Protocol(raw)
    except ValueError:
        raise OtelError(f"{name}={raw}: expected {' or '.join(Protocol)}") from None


def _hint(protocol: Protocol, url: SplitResult) -> str:
    """What to do when the port is the usual one of the other protocol."""
    for other, port in DEFAULT_PORTS.items():
        if other is not protocol and url.port == port:
            return (
                f"{port} is the usual port of OTEL_EXPORTER_OTLP_PROTOCOL={other}, not {protocol}"
            )
    return ""


def _check_files(environ: Environ) -> None:
    """The SDK would go on without a file that is missing, and fail later for another reason."""
    for kind in ("CERTIFICATE", "CLIENT_KEY", "CLIENT_CERTIFICATE"):
        for name in (f"OTEL_EXPORTER_OTLP_TRACES_{kind}", f"OTEL_EXPORTER_OTLP_{kind}"):
            path = environ.get(name)
            if path and not Path(path).is_file():
                raise OtelError(f"{name}={path}: no such file")


def _first(environ: Environ, *names: str) -> tuple[str, str]:
    """The first variable that is set and not blank, and its value."""
    for name in names:
        if value := environ.get(name, "").strip():
            return name, value
    return names[-1], ""
