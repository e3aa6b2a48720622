"""Many runs at once on one device: 32 streams against one, 16 clients against one (figure 3)."""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from statistics import median
from typing import Final

import torch
from prometheus_client import CollectorRegistry

from gpu.rig import Net, Setup, backend, mlp
from sits_channel.pool_reader import PoolReader
from sits_core.clock import now_ns
from sits_core.tracing import Tracer
from sits_executor import batch as batches
from sits_executor.backends.pytorch.flights import TorchFlight
from sits_executor.backends.pytorch.streams import StreamedBackend
from sits_executor.metrics import Metrics
from sits_executor.payloads import Payloads
from sits_executor.queue import BatchQueue
from sits_executor.spans import Spans
from sits_executor.streams.buffers import Buffers
from sits_executor.streams.model import StreamModel
from sits_executor.streams.runner import StreamRunner
from sits_executor.streams.scheduler import STREAMS, StreamScheduler
from sits_executor.testing import batch
from sits_protos.v1.link_pb2 import LinkMessage
from sits_scheduling.watermarks import Precision
from sits_sim.figures import Figure, higher, plain

THREE_TIMES: Final = 3.0
CLIENTS: Final = 16
CLIENT_BAR: Final = 2.35
ROWS: Final = 8
ROUNDS: Final = 9


def measure(setup: Setup) -> list[Figure]:
    net = mlp(setup)
    opened = backend(net, setup.open(), STREAMS, (ROWS,))
    try:
        return [*_streams(setup, net, opened), *_clients(setup, net, opened)]
    finally:
        opened.close()


def _streams(setup: Setup, net: Net, opened: StreamedBackend) -> list[Figure]:
    """32 runs: one after the other on one stream, then all on streams of their own."""
    one, many = [], []
    bare = _bare_us(setup, opened) if setup.on_gpu else (0.0, 0.0)
    for _ in range(setup.times(ROUNDS * 20)):
        one.append(_all_us(opened, net, 1))
        many.append(_all_us(opened, net, STREAMS))
    name = f"streams: {STREAMS} small graphs"
    return [
        higher(f"{name}, {STREAMS} streams against one", 1e6 * STREAMS / median(many), "1/s",
               1e6 * STREAMS / median(one), THREE_TIMES),
        plain(f"{name} on one stream", median(one), "us"),
        plain(f"{name} on {STREAMS} streams", median(many), "us"),
        plain(f"{name} on one stream, bare replays without copies", bare[0], "us"),
        plain(f"{name} on {STREAMS} streams, bare replays without copies", bare[1], "us"),
    ]  # fmt: skip


def _all_us(opened: StreamedBackend, net: Net, at_once: int) -> float:
    inputs = net.inputs(ROWS, 1)
    flying: deque[TorchFlight] = deque()
    started = time.perf_counter_ns()
    left = STREAMS
    while left or flying:
        while left and len(flying) < at_once:
            staged = opened.stage(inputs)
            flight = opened.launch(staged, {}) if staged is not None else None
            if flight is None:
                raise RuntimeError("no stream is free")
            flying.append(flight)
            left -= 1
        if flying[0].done():
            flight = flying.popleft()
            flight.land()
            flight.release()
    return (time.perf_counter_ns() - started) / 1e3


def _bare_us(setup: Setup, opened: StreamedBackend) -> tuple[float, float]:
    slots = opened._slots.slots
    graphs = [next(iter(slot.graphs.values())).graph for slot in slots]

    def replay(own: bool) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter_ns()
        for slot, graph in zip(slots, graphs, strict=True):
            opened.device.use(slot.stream if own else slots[0].stream)
            graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - started) / 1e3

    times = range(setup.times(ROUNDS * 20))
    return median(replay(False) for _ in times), median(replay(True) for _ in times)


class Clients:
    """So many at once, each with one batch under way; through queue, scheduler and runner."""

    def __init__(self, net: Net, opened: StreamedBackend) -> None:
        self._scheduler = StreamScheduler()
        runner = StreamRunner(
            net.contract,
            opened,
            Payloads(PoolReader("/dev/shm"), None, 0),  # noqa: S108 - nothing is read there
            Spans(Tracer("executor", 100, 0.0), "bench"),
            Metrics(CollectorRegistry()).of(net.name),
            "bench",
            count(1),
        )
        runner.stream = opened
        buffers = Buffers(Precision[opened.precision], 1 << 16)
        self._queue = BatchQueue(1024, gauge=buffers.queue)
        name = f"{net.name}/1"
        model = StreamModel(name, self._queue, opened, runner, buffers, lambda: None)
        self._scheduler.attach(model)
        self._message = batch(1, net.name, [dict(net.inputs(ROWS, 1))])
        self._numbers = count(1)

    def per_s(self, at_once: int, seconds: float) -> float:
        """Batches a second. A client sends its next one when it has its answer."""
        done = count()
        over = threading.Event()
        left = threading.Semaphore(0)

        def answer(result: LinkMessage) -> bool:
            if result.result.HasField("error"):
                raise RuntimeError(result.result.error.message)
            next(done)
            if over.is_set():
                left.release()
            else:
                self._send(answer)
            return True

        for _ in range(at_once):
            self._send(answer)
        time.sleep(seconds / 4)
        before, started = next(done), time.monotonic()
        time.sleep(seconds)
        after, took = next(done), time.monotonic() - started
        over.set()
        for _ in range(at_once):
            left.acquire()
        return (after - before - 1) / took

    def close(self) -> None:
        self._scheduler.stop()

    def _send(self, answer: Callable[[LinkMessage], bool]) -> None:
        parsed = batches.from_message(self._message, now_ns(), answer, "link")
        if not self._queue.write(parsed).accepted:
            raise RuntimeError("the queue is full")


def _clients(setup: Setup, net: Net, opened: StreamedBackend) -> list[Figure]:
    clients = Clients(net, opened)
    seconds = 0.2 if setup.quick else 1.0
    try:
        runs = [(clients.per_s(1, seconds), clients.per_s(CLIENTS, seconds)) for _ in range(3)]
    finally:
        clients.close()
    alone, together = median(r[0] for r in runs), median(r[1] for r in runs)
    return [
        Figure(f"clients: {CLIENTS} batches of {ROWS} at once, unmerged, through one executor's "
               "queue and scheduler, against one at a time", together, "1/s", alone,
               together / alone),
    ]  # fmt: skip
