"""Python and the packages that SITS stands on."""

import importlib
import platform
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from sits_cli.doctor.finding import Environ, Finding, good, note, problem, warning

OLDEST, NEWEST = (3, 11), (3, 13)
OWN = ("sits-protos", "sits-core", "sits-channel", "sits-scheduling", "sits-cli",
       "sits-preprocess", "sits-dispatcher", "sits-executor", "sits-topology")  # fmt: skip
MODULES = {
    "sits_protos.v1.control_pb2": "the contracts (is protobuf older than what generated them?)",
    "grpc": "gRPC",
    "redis": "the Redis client",
    "numpy": "arrays",
    "tritonclient.grpc": "the client of the front door",
}
"""Modules that nothing works without, and what they are."""


def python(_environ: Environ) -> Iterator[Finding]:
    text = f"Python {platform.python_version()}, {platform.system()} on {platform.machine()}"
    if sys.version_info < OLDEST:
        yield problem("python", text, "install Python 3.11 or newer")
    elif sys.version_info[:2] > NEWEST:
        yield warning("python", text, "SITS is tested with 3.11 to 3.13: use one of these")
    else:
        yield good("python", text)


def packages(_environ: Environ) -> Iterator[Finding]:
    """All of ours from one release, and what they need can be imported."""
    found = {name: _version(name) for name in OWN}
    versions = {v for v in found.values() if v is not None}
    missing = ", ".join(name for name, v in found.items() if v is None)
    if len(versions) > 1:
        listed = ", ".join(f"{name} {v}" for name, v in found.items() if v)
        yield problem("packages", f"mixed releases: {listed}", "install all of them in one go")
    else:
        yield good("packages", f"SITS {versions.pop()}")
    if missing:
        yield note("packages", f"not installed here: {missing}")
    yield from filter(None, map(_importable, MODULES))


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _importable(module: str) -> Finding | None:
    try:
        importlib.import_module(module)
    except Exception as error:  # noqa: BLE001 - whatever an import can raise is the finding
        reason = f"{type(error).__name__}: {error}"
        return problem(
            "packages", f"{module} cannot be imported, {MODULES[module]}: {reason}",
            "install again with the pins: pip install -c constraints.txt ...",
        )  # fmt: skip
    return None
