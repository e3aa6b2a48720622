"""Whether a service says it is ready, by `grpc.health.v1`."""

import os
from collections.abc import Mapping

from sits_core import healthcheck
from sits_core.tls import client_tls_from

CHECK_TIMEOUT_S = 1.0


def ready(
    address: str, timeout_s: float = CHECK_TIMEOUT_S, environ: Mapping[str, str] = os.environ
) -> bool:
    """False as well when nobody answers. TLS is what `environ` says."""
    return healthcheck.ready(address, timeout_s, client_tls_from(environ))
