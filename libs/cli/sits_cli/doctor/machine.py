"""Shared memory, descriptors, the clock, and GPUs."""

import ctypes
import importlib
import os
import resource
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from sits_cli.doctor.finding import Environ, Finding, good, note, problem, warning
from sits_cli.output import size
from sits_core.settings import Settings

POOLS = {"SITS_PREPROCESS_POOL_BYTES": 256 << 20, "SITS_EXECUTOR_POOL_BYTES": 64 << 20}
"""What each front door and executor takes of shared memory, unless set."""
ENOUGH_FILES = 4096
TIME_ERROR = 5
"""What adjtimex returns while nothing keeps the clock."""
TIMEX_BYTES = 256


def shared_memory(environ: Environ) -> Iterator[Finding]:
    folder = environ.get("SITS_SHM_DIR") or str(Settings.model_fields["shm_dir"].default)
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix="sits-doctor-"):
            free = _free_bytes(folder)
    except OSError as error:
        yield problem(
            "memory", f"no file can be made in {folder}: {error.strerror}",
            "mount a tmpfs there that this user may write to, or set SITS_SHM_DIR; without it "
            "payloads travel over gRPC",
        )  # fmt: skip
        return
    wanted = sum(_number(environ.get(name), default) for name, default in POOLS.items())
    text = f"{folder}: {size(free)} free"
    if free < 2 * wanted:  # a pool takes at most half of what is free
        yield warning(
            "memory", f"{text}; a front door and an executor want {size(wanted)}",
            "make it larger (mount -o remount,size=..., --shm-size), or lower "
            f"{' and '.join(POOLS)}",
        )  # fmt: skip
    else:
        yield good("memory", text)


def _free_bytes(folder: str) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def _number(text: str | None, default: int) -> int:
    return int(text) if text and text.isdecimal() else default


def descriptors(_environ: Environ) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} open files allowed"
    if 0 <= soft < ENOUGH_FILES:
        more = f"ulimit -n {min(hard, 65_536) if hard > 0 else 65_536}"
        yield warning("limits", text, f"each client is one: {more} before the services start")
    else:
        yield good("limits", text)


def clock(_environ: Environ) -> Iterator[Finding]:
    state = _clock_state()
    if state is None:
        yield note("clock", "this system does not tell whether its clock is kept")
    elif state == TIME_ERROR:
        yield warning(
            "clock", "nothing keeps this machine's clock",
            "run an NTP client (chrony): deadlines and traces between machines go by it",
        )  # fmt: skip
    else:
        yield good("clock", "kept by NTP or the like")


def _clock_state() -> int | None:
    """What Linux' adjtimex returns when it is only asked; None where there is none."""
    ask = getattr(ctypes.CDLL(None, use_errno=True), "adjtimex", None)
    if ask is None:
        return None
    state = int(ask(ctypes.create_string_buffer(TIMEX_BYTES)))
    return state if state >= 0 else None


def gpus(_environ: Environ) -> Iterator[Finding]:
    if find_spec("pynvml") is None:
        yield note("gpu", "nvidia-ml-py is not installed here: the topology service brings it")
        return
    try:
        found = _nvml()
    except Exception as error:  # noqa: BLE001 - NVML's errors are made at run time
        yield _no_nvml(str(error))
    else:
        yield good("gpu", found)
        yield from _providers()


def _nvml() -> str:
    """Driver and devices. Raises NVML's errors."""
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    try:
        count, driver = nvml.nvmlDeviceGetCount(), nvml.nvmlSystemGetDriverVersion()
        return f"{count} NVIDIA GPUs, driver {driver}"
    finally:
        nvml.nvmlShutdown()


def _no_nvml(reason: str) -> Finding:
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return good("gpu", "no NVIDIA GPU: models run on the CPU")
    return problem(
        "gpu", f"there are NVIDIA devices, but NVML does not answer: {reason}",
        "`nvidia-smi` must work first: driver and library of one version, and in containers the "
        "NVIDIA container toolkit",
    )  # fmt: skip


def _providers() -> Iterator[Finding]:
    if find_spec("onnxruntime") is None:
        return
    providers = importlib.import_module("onnxruntime").get_available_providers()
    if "CUDAExecutionProvider" not in providers:
        yield warning(
            "gpu", "ONNX Runtime cannot use them: it was built for the CPU",
            "pip install onnxruntime-gpu in place of onnxruntime",
        )  # fmt: skip
