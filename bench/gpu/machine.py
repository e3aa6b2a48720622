"""What a run on GPUs was measured on, without names that identify a machine."""

from collections.abc import Mapping
from datetime import UTC, datetime

import torch

from sits_bench.machine import describe as describe_host
from sits_topology.probe.run import software


def describe() -> Mapping[str, object]:
    """As every kept result has it, with the GPUs and the versions that decide about them."""
    host = describe_host()
    kept = {key: host[key] for key in ("machine", "system", "commit", "packages", "busy")}
    count = torch.cuda.device_count()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "gpus": [torch.cuda.get_device_name(number) for number in range(count)],
        "driver": driver(),
        "software": software(),
        **kept,
    }


def driver() -> str:
    """Empty where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""
