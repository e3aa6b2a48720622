"""Memory of the first GPU, as NVML has it."""

import pynvml


def used_bytes(pid: int | None = None) -> int:
    """Of the whole GPU, or of one process on it; 0 where there is none."""
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except pynvml.NVMLError:
        return 0
    if pid is None:
        return int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    return sum(int(each.usedGpuMemory or 0) for each in processes if each.pid == pid)
