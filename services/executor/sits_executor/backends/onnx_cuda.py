"""ONNX Runtime on a GPU: its libraries, its options, what runs there, what its errors mean."""

import io
import re
from collections.abc import Mapping
from contextlib import redirect_stdout
from functools import cache
from typing import Any, Final

from sits_executor.backends.base import LoadError, LoadSpec
from sits_executor.backends.sticky import is_sticky
from sits_executor.backends.streamed import DeviceLost, OutOfMemory
from sits_executor.safe import safe_cause
from sits_protos.oip.model_config_pb2 import ModelInstanceGroup

PROVIDER: Final = "CUDAExecutionProvider"
RECORD: Final = "session.record_ep_graph_assignment_info"
"""Makes a session tell which provider has which operators; older runtimes do not know it."""

_WARNINGS_ARE_NOT_SHOWN = 3
_CAUSE: Final = re.compile(
    r"(?:CUDA|CUBLAS|CUDNN|CUFFT|CURAND) failure \d+: [^;\n]+"
    r"|Invalid device ID[^;\n]*"
    r"|Failed to allocate memory for requested buffer of size \d+"
    r"|Available memory of \d+ is smaller than requested bytes of \d+"
)
_NO_MEMORY: Final = (
    "out of memory",
    "failed to allocate memory",
    "available memory of",
    "resource allocation failed",
    "alloc_failed",
)
"""As CUDA, ONNX Runtime's arena, cuBLAS and cuDNN word it. Weakness: as of `is_sticky`."""


def options(spec: LoadSpec, gpu: int) -> Mapping[str, str]:
    """Of the provider, where its own defaults do not fit: TF32 gives a row another answer in
    another batch, and the exhaustive search for a convolution's algorithm takes a tenth of a
    second for every number of rows. The limit is one session's: it knows none of a process."""
    limit = {"gpu_mem_limit": str(spec.gpu_memory_bytes)} if spec.gpu_memory_bytes else {}
    return {
        "device_id": str(gpu),
        "use_tf32": "1" if spec.parameter("tf32") == "true" else "0",
        "cudnn_conv_algo_search": "HEURISTIC",
        **limit,
    }


def require(runtime: Any) -> None:
    """Raises `LoadError` when this ONNX Runtime has no such provider."""
    available = runtime.get_available_providers()
    if PROVIDER not in available:
        raise LoadError(
            f"the model asks for a GPU, but this ONNX Runtime has no {PROVIDER} "
            f"(it has {', '.join(available)}): install onnxruntime-gpu[cuda,cudnn] in place of "
            "onnxruntime, or use KIND_CPU"
        )


@cache
def prepare(runtime: Any) -> str:
    """Loads the CUDA libraries that pip put beside ONNX Runtime: by itself it looks only where the
    system's are. What is missing, in its words; empty when nothing is."""
    runtime.set_default_logger_severity(_WARNINGS_ARE_NOT_SHOWN)
    load = getattr(runtime, "preload_dlls", None)
    if load is None:  # before 1.21
        return ""
    with redirect_stdout(io.StringIO()) as said:
        load()
    failed = re.search(r"Failed to load \S+: (.+)", said.getvalue())
    return failed[1] if failed else ""


def not_started(runtime: Any, chosen: list[str]) -> LoadError:
    """ONNX Runtime chose others, and wrote why to its log only."""
    cause = prepare(runtime) or "are the CUDA libraries and a device there?"
    return LoadError(
        f"the model asks for a GPU, but ONNX Runtime could not start {PROVIDER} and chose "
        f"{', '.join(chosen)}: {cause}"
    )


def not_opened(spec: LoadSpec, error: Exception, gpu: int) -> LoadError:
    """With the cause, which may stand behind a page of C++."""
    if lacks_memory(error):
        return LoadError(f"GPU {gpu} has no memory left for the model: {cause_of(error)}")
    if _CAUSE.search(str(error)):
        return LoadError(f"GPU {gpu} cannot be used: {cause_of(error)}")
    return LoadError(spec.cause(error))


class NothingRunsThere(LoadError):
    """The provider has none of the model's operators."""


def refuse_idle(session: Any) -> str:
    """The operators that ONNX Runtime leaves on the CPU. Raises `NothingRunsThere` when that is
    all of them: the session says that it is on the GPU all the same."""
    here: set[str] = set()
    there = False
    for part in _parts(session):
        there |= part.ep_name == PROVIDER
        if part.ep_name != PROVIDER:
            here |= {node.op_type for node in part.get_nodes()}
    names = ", ".join(sorted(here))
    if here and not there:
        raise NothingRunsThere(
            f"the model asks for a GPU, but none of its operators runs on one: {names}"
        )
    return names


def is_asked_for(spec: LoadSpec) -> bool:
    """By name. KIND_AUTO only follows the executor's device."""
    kinds = {group.kind for group in spec.config.instance_group}
    return ModelInstanceGroup.KIND_GPU in kinds


def translated(error: Exception) -> Exception:
    """`DeviceLost` or `OutOfMemory` where it is that, else the error as it is."""
    if is_sticky(error):
        return DeviceLost(cause_of(error))
    if lacks_memory(error):
        return OutOfMemory("the device has no memory left for this run")
    return error


def lacks_memory(error: Exception) -> bool:
    text = str(error).lower()
    return any(sign in text for sign in _NO_MEMORY)


def cause_of(error: Exception) -> str:
    """Without the source lines and the host's name that ONNX Runtime puts around it."""
    found = _CAUSE.search(str(error))
    return found[0].strip() if found else safe_cause(error)


def _parts(session: Any) -> list[Any]:
    tell = getattr(session, "get_provider_graph_assignment_info", None)
    return list(tell()) if tell is not None else []
