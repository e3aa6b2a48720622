"""Which process of a mesh uses how much of the CPU, and which GPU how much of its time."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from sits_bench.processes import family

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_SAMPLE_S: Final = 0.1


class Usage:
    """CPU seconds a second of each service, summed over its processes and of its busiest one;
    busy share of each GPU. Filled when the measurement ends."""

    def __init__(self) -> None:
        self.services: dict[str, float] = {}
        self.busiest: dict[str, float] = {}
        self.gpus: list[float] = []


@contextmanager
def watched(pids: Mapping[str, int]) -> Iterator[Usage]:
    """By service name; children are counted with their parent."""
    usage, samples, over = Usage(), list[list[float]](), threading.Event()
    before, began = _all(pids), time.monotonic()
    thread = threading.Thread(target=_sample, args=(samples, over))
    thread.start()
    try:
        yield usage
    finally:
        seconds = time.monotonic() - began
        after = _all(pids)
        over.set()
        thread.join()
    for name, own in after.items():
        shares = [(now - before[name].get(pid, 0.0)) / seconds for pid, now in own.items()]
        usage.services[name], usage.busiest[name] = sum(shares), max(shares, default=0.0)
    usage.gpus = [sum(each) / len(each) for each in zip(*samples, strict=True)]


def _all(pids: Mapping[str, int]) -> dict[str, dict[int, float]]:
    return {name: {own: _cpu_s(own) for own in family(pid)} for name, pid in pids.items()}


def _cpu_s(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _sample(samples: list[list[float]], over: threading.Event) -> None:
    busy = _gpu_reader()
    while not over.wait(_SAMPLE_S):
        samples.append(busy())


def _gpu_reader() -> Callable[[], list[float]]:
    """Share of the last moment in which a kernel ran, as NVML has it; nothing without GPUs."""
    import pynvml

    try:
        pynvml.nvmlInit()
        handles = [
            pynvml.nvmlDeviceGetHandleByIndex(number)
            for number in range(pynvml.nvmlDeviceGetCount())
        ]
    except pynvml.NVMLError:
        return list
    return lambda: [pynvml.nvmlDeviceGetUtilizationRates(h).gpu / 100 for h in handles]
