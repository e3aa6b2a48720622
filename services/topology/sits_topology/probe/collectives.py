"""All-reduce over gangs of GPUs: one process a GPU, NCCL, timed by CUDA events.

On a machine without GPUs the same runs over gloo, which tests use; it says nothing of links.
"""

import json
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final, NamedTuple

import torch
import torch.distributed as dist
from torch import multiprocessing

from sits_topology.probe.events import gpu_seconds
from sits_topology.probe.plan import MIB
from sits_topology.probe.timing import (
    REPETITIONS,
    WARM_UPS,
    AllReduce,
    Gang,
    Timing,
    timing_of,
)

SIZES: Final = (4 << 10, MIB, 16 * MIB, 64 * MIB, 256 * MIB)
BACK_TO_BACK: Final = 10
LIMIT_S: Final = 180.0
"""All of them together; a collective that hangs is ended after it."""


Once = Callable[[], float]
"""Runs some, one after the other; seconds of one."""


class CollectivesFailed(RuntimeError):
    """NCCL would not, or took too long; the text says which process and how."""


class Job(NamedTuple):
    gangs: Sequence[Gang]
    sizes: Sequence[int]
    device: str
    meeting: str


def all_reduces(
    gangs: Sequence[Gang],
    sizes: Sequence[int] = SIZES,
    device: str = "cuda",
    done: Callable[[], object] = lambda: None,
    limit_s: float = LIMIT_S,
) -> list[AllReduce]:
    """Times every gang, one after the other, `done` after each. Raises `CollectivesFailed`."""
    world = 1 + max(rank for gang in gangs for rank in gang)
    found: list[AllReduce] = []
    with tempfile.TemporaryDirectory() as folder:
        job = Job(gangs, sizes, device, (Path(folder) / "meeting").as_uri())
        with _members(world, job) as (members, results):
            ends = time.monotonic() + limit_s
            while len(found) < len(gangs) * len(sizes):
                if not results.poll(0.2):
                    _check(members, ends)
                    continue
                found.append(_received(results, members))
                if len(found) % len(sizes) == 0:
                    done()
    return found


def _received(results: Connection, members: Sequence[BaseProcess]) -> AllReduce:
    try:
        gang, size_bytes, seconds, spread = json.loads(results.recv_bytes())
    except EOFError:
        raise CollectivesFailed(f"the members ended: {_codes(members)}") from None
    return AllReduce(tuple(gang), size_bytes, Timing(seconds, spread))


def _check(members: Sequence[BaseProcess], ends: float) -> None:
    if any(member.exitcode for member in members):
        raise CollectivesFailed(f"a member failed: {_codes(members)}")
    if time.monotonic() > ends:
        raise CollectivesFailed("an all-reduce did not come to an end in time")


def _codes(members: Sequence[BaseProcess]) -> str:
    return ", ".join(f"{rank} → {member.exitcode}" for rank, member in enumerate(members))


@contextmanager
def _members(world: int, job: Job) -> Iterator[tuple[list[BaseProcess], Connection]]:
    """One process a GPU, all gone at the end."""
    context = multiprocessing.get_context("spawn")
    results, report = context.Pipe(duplex=False)
    members: list[BaseProcess] = [
        context.Process(target=_member, args=(rank, world, job, report), daemon=True)
        for rank in range(world)
    ]
    for member in members:
        member.start()
    report.close()
    try:
        yield members, results
        for member in members:
            member.join(10.0)
    finally:
        for member in members:
            member.kill()
            member.join()
        results.close()


def _member(rank: int, world: int, job: Job, report: Connection) -> None:
    """The first of a gang reports for it."""
    cuda = job.device == "cuda"
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    dist.init_process_group(
        backend,
        init_method=job.meeting,
        rank=rank,
        world_size=world,
        device_id=device if cuda else None,
    )
    memory = torch.ones(max(job.sizes) // 4, device=device)
    for gang in job.gangs:
        group = dist.new_group(list(gang), backend=backend)
        if rank in gang:
            for size_bytes in job.sizes:
                timing = _timed(memory[: size_bytes // 4], group, cuda)
                if rank == gang[0]:
                    report.send_bytes(json.dumps([gang, size_bytes, *timing]).encode())
            dist.destroy_process_group(group)
        dist.barrier()
    dist.destroy_process_group()


def _timed(memory: torch.Tensor, group: dist.ProcessGroup, cuda: bool) -> Timing:
    """Of this member, then the slowest member's median and the largest spread."""
    memory.fill_(1.0)
    dist.all_reduce(memory, group=group)
    if float(memory[-1]) != dist.get_world_size(group):
        raise CollectivesFailed("an all-reduce gave a wrong sum")
    memory.zero_()  # sums of sums would end at infinity
    once = (_on_gpu if cuda else _on_cpu)(memory, group)
    for _ in range(WARM_UPS):
        once()
    own = timing_of([once() for _ in range(REPETITIONS)])
    worst = torch.tensor(own, dtype=torch.float64, device=memory.device)
    dist.all_reduce(worst, op=dist.ReduceOp.MAX, group=group)
    return Timing(float(worst[0]), float(worst[1]))


def _on_gpu(memory: torch.Tensor, group: dist.ProcessGroup) -> Once:
    """Replays a graph of several: launching one by one would take longer than a small one."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        for _ in range(BACK_TO_BACK):
            dist.all_reduce(memory, group=group)

    def once() -> float:
        dist.barrier(group=group)
        return gpu_seconds(graph.replay, 1) / BACK_TO_BACK

    return once


def _on_cpu(memory: torch.Tensor, group: dist.ProcessGroup) -> Once:
    def once() -> float:
        dist.barrier(group=group)
        started = time.perf_counter()
        for _ in range(BACK_TO_BACK):
            dist.all_reduce(memory, group=group)
        return (time.perf_counter() - started) / BACK_TO_BACK

    return once
