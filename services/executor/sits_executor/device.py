"""Which device this executor runs on."""

import os
import re
from collections.abc import Mapping

GIVEN = "NVIDIA_VISIBLE_DEVICES"
_ONE_DEVICE = re.compile(r"(GPU|MIG)-[\w/-]+")


def device_name(setting: str, node: int, environ: Mapping[str, str] = os.environ) -> str:
    """The setting, or the one GPU that this container was given, or the CPU of the node; an
    unbound process counts as node 0."""
    return setting or given_gpu(environ) or f"cpu:{max(node, 0)}"


def given_gpu(environ: Mapping[str, str]) -> str:
    """The GPU that Kubernetes' device plugin gave to this container, by UUID. Empty where it is
    several, all, or named by an index, which says nothing outside."""
    given = environ.get(GIVEN, "")
    return given if _ONE_DEVICE.fullmatch(given) else ""


def is_gpu(device: str) -> bool:
    return device.startswith(("GPU-", "MIG-"))
