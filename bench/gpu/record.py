"""What NVML and `nvidia-smi topo -m` answer here, as files for tests: no serials, no UUIDs.

The form is that of tests/topology/data/nvml: a question that was refused is kept with its error.
"""

import ctypes
import json
import re
import subprocess
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import pynvml

from sits_topology.nvml_api import AFFINITY_NODE, MAX_NVLINKS

Answer = Any

PLAIN: Final = (
    "nvmlDeviceGetMemoryInfo", "nvmlDeviceGetPciInfo", "nvmlDeviceGetMaxPcieLinkGeneration",
    "nvmlDeviceGetCurrPcieLinkGeneration", "nvmlDeviceGetMaxPcieLinkWidth",
    "nvmlDeviceGetCurrPcieLinkWidth", "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetNumaNodeId",
    "nvmlDeviceGetMigMode", "nvmlDeviceGetEccMode", "nvmlDeviceGetComputeMode",
    "nvmlDeviceGetCudaComputeCapability", "nvmlDeviceGetPowerUsage",
    "nvmlDeviceGetPersistenceMode", "nvmlDeviceGetMultiGpuBoard", "nvmlDeviceGetBAR1MemoryInfo",
    "nvmlDeviceGetVirtualizationMode", "nvmlDeviceGetCurrentClocksEventReasons",
    "nvmlDeviceGetRemappedRows", "nvmlDeviceGetSupportedEventTypes",
)  # fmt: skip
P2P: Final = {"READ": 0, "WRITE": 1, "NVLINK": 2, "ATOMICS": 3, "PROP": 4}
UNCORRECTED, VOLATILE = 1, 0
_UUID = re.compile(r"(GPU|MIG)-[0-9a-f-]{36}", re.IGNORECASE)


def record(folder: Path) -> list[Path]:
    """Writes `h200-x4.json` and the like, and the text of nvidia-smi beside it."""
    found = answers()
    name = f"{_short(found['devices'][0]['name'])}-x{len(found['devices'])}"
    files = [folder / f"{name}.json", folder / f"{name}-topo-m.txt"]
    files[0].write_text(checked(json.dumps(found, indent=1)) + "\n")
    files[1].write_text(checked(topo_text()))
    return files


def answers() -> dict[str, Any]:
    pynvml.nvmlInit()
    try:
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())
        ]
        return {
            "driver": pynvml.nvmlSystemGetDriverVersion(),
            "nvml": pynvml.nvmlSystemGetNVMLVersion(),
            "cuda": pynvml.nvmlSystemGetCudaDriverVersion(),
            "devices": [_device(index, handle) for index, handle in enumerate(handles)],
            "pairs": [
                _pair(a, handles[a], b, handles[b]) for a, b in combinations(range(len(handles)), 2)
            ],
        }
    finally:
        pynvml.nvmlShutdown()


def topo_text() -> str:
    """Empty without nvidia-smi."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"],  # noqa: S607 - wherever the driver put it
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    except OSError:
        return ""
    return done.stdout


def checked(text: str) -> str:
    """Raises `ValueError` when something in it would identify a card."""
    if found := _UUID.search(text):
        raise ValueError(f"a record must not hold a UUID: {found[0][:8]}…")
    return text


def _device(index: int, handle: object) -> dict[str, Any]:
    found = {name: _ask(name, handle) for name in PLAIN}
    return {
        "index": index,
        "name": _plain(pynvml.nvmlDeviceGetName(handle)),
        **found,
        "ecc_uncorrected_volatile": _ask(
            "nvmlDeviceGetTotalEccErrors", handle, UNCORRECTED, VOLATILE
        ),
        "cpu_affinity": _ask("nvmlDeviceGetCpuAffinity", handle, 4),
        "mem_affinity": _ask("nvmlDeviceGetMemoryAffinity", handle, 1, AFFINITY_NODE),
        "nvlink": list(_nvlinks(handle)),
    }


def _nvlinks(handle: object) -> list[dict[str, Any]]:
    """Those that the board has: the rest of the numbers answer with an error."""
    found = []
    for link in range(MAX_NVLINKS):
        state = _ask("nvmlDeviceGetNvLinkState", handle, link)
        if isinstance(state, dict):
            break
        found.append({
            "link": link,
            "state": state,
            "version": _ask("nvmlDeviceGetNvLinkVersion", handle, link),
            "remote_pci": _ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link),
            "remote_type": _ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link),
            "p2p": _ask("nvmlDeviceGetNvLinkCapability", handle, link, 0),
        })  # fmt: skip
    return found


def _pair(a: int, one: object, b: int, other: object) -> dict[str, Any]:
    return {
        "a": a,
        "b": b,
        "ancestor": _ask("nvmlDeviceGetTopologyCommonAncestor", one, other),
        "p2p": {
            f"NVML_P2P_CAPS_INDEX_{name}": _ask("nvmlDeviceGetP2PStatus", one, other, index)
            for name, index in P2P.items()
        },
    }


def _ask(name: str, *arguments: object) -> Answer:
    function: Callable[..., object] | None = getattr(pynvml, name, None)
    if function is None:
        return {"error": "not in this pynvml"}
    try:
        return _plain(function(*arguments))
    except pynvml.NVMLError as error:
        return {"error": type(error).__name__, "text": str(error)}


def _plain(value: object) -> Answer:
    """Structures as dictionaries, bytes as text, arrays as lists."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    if hasattr(value, "_fields_"):
        return {field[0]: _plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, ctypes.Array | list | tuple):
        return [_plain(each) for each in value]
    return str(value)


def _short(name: str) -> str:
    """`NVIDIA H200` → `h200`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().removeprefix("nvidia")).strip("-")
