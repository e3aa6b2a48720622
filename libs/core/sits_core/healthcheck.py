"""`python -m sits_core.healthcheck HOST:PORT`: exit status 0 = the service says it is ready.

For probes of containers: asks `grpc.health.v1` over the TLS that the SITS_TLS_ variables name.
Probes run every few seconds, so what only TLS needs is imported only then: half of the time.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

if TYPE_CHECKING:
    from sits_core.tls import ClientTls

ALIVE = "alive"
"""Name that health checks may ask for: SERVING for as long as the server answers at all, where
the server itself ("") says whether it is ready."""

TIMEOUT_S = 1.0
SERVING = health_pb2.HealthCheckResponse.SERVING


def ready(
    address: str, timeout_s: float = TIMEOUT_S, tls: "ClientTls | None" = None, service: str = ""
) -> bool:
    """False as well when nobody answers."""
    return problem(address, timeout_s, tls, service) is None


def problem(
    address: str, timeout_s: float = TIMEOUT_S, tls: "ClientTls | None" = None, service: str = ""
) -> str | None:
    """Why `service` at `address` is not ready; None = it is. On a fresh connection, so that no
    back-off hides a start."""
    with _open(address, tls) as opened:
        ask = health_pb2.HealthCheckRequest(service=service)
        try:
            status = health_pb2_grpc.HealthStub(opened).Check(ask, timeout=timeout_s).status
        except grpc.RpcError as error:
            return f"{error.code().name}: {error.details()}"
    return (
        None
        if status == SERVING
        else str(health_pb2.HealthCheckResponse.ServingStatus.Name(status))
    )


def _open(address: str, tls: "ClientTls | None") -> grpc.Channel:
    options: list[tuple[str, int | str]] = [
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
    if tls is None:
        return grpc.insecure_channel(address, options=options)
    from sits_core.rpc import channel

    return channel(address, tls, options)


def _tls(environ: Mapping[str, str]) -> "ClientTls | None":
    if not any(name.startswith("SITS_TLS_") for name in environ):
        return None
    from sits_core.settings import SettingsError
    from sits_core.tls import client_tls_from

    try:
        return client_tls_from(environ)
    except SettingsError as error:
        sys.exit(str(error))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="sits_core.healthcheck", description=__doc__)
    parser.add_argument("address", help="host:port")
    parser.add_argument("--alive", action="store_true", help="whether it answers, ready or not")
    parser.add_argument("--service", default="", help="ask for one service of the port")
    parser.add_argument("--timeout", type=float, default=2.0, help="seconds")
    given = parser.parse_args(arguments)
    service = ALIVE if given.alive else given.service
    why = problem(given.address, given.timeout, _tls(os.environ), service)
    if why is not None:
        print(f"{given.address}: {why}", file=sys.stderr)
    return 0 if why is None else 1


if __name__ == "__main__":
    sys.exit(main())
