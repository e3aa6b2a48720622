"""What each stage of the request path takes, in one process and with nothing in between.

Front door, dispatcher and executor are the real ones, but for what carries messages: links are
lists, HTTP/2 is left out, the model echoes. No process has to be woken, so that a figure is the
time of our own code, and steady enough to judge a change of a few microseconds on a busy machine:
the lower quartile of many batches, the least of the rounds.

"Until written" is from a message's arrival to the leaving of the next one: what a request waits
for. "In all" includes what is done after it. "Cold": before each stage the caches are filled with
something else, as in a mesh, where each process finds those of the others.
"""

import logging
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, NamedTuple

import numpy as np
import structlog

from sits_bench import machine, repositories
from sits_bench.groups.front import KILOBYTE
from sits_bench.show import finish, main, options
from sits_channel.bounded import Pressure
from sits_channel.link import Link
from sits_channel.pool_reader import PoolReader
from sits_channel.shared_memory import SharedMemory
from sits_core.clock import Deadline
from sits_core.errors import SitsError
from sits_core.metrics import ProcessRegistry
from sits_core.settings import load
from sits_core.tracing import Tracer
from sits_core.tuning import tune
from sits_dispatcher.app import build_mesh
from sits_dispatcher.app import hello as dispatcher_hello
from sits_dispatcher.mesh import Mesh
from sits_dispatcher.settings import DispatcherSettings
from sits_executor.executor import Executor
from sits_executor.identity import identify
from sits_executor.payloads import Payloads as ExecutorPayloads
from sits_executor.settings import ExecutorSettings
from sits_preprocess.accounts import Accounts
from sits_preprocess.admission import Admission
from sits_preprocess.engine import Engine
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.front import access_of, regions_of
from sits_preprocess.infer_unary import InferUnary
from sits_preprocess.inference import Inference, OpenLimits
from sits_preprocess.payloads import Payloads as FrontPayloads
from sits_preprocess.server_settings import TraceSettings
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.statistics import Statistics
from sits_preprocess.transport.call import Call, Metadata, Trailers
from sits_protos.v1.link_pb2 import Hello, LinkMessage, Role
from sits_scheduling.tenant_file import standard_tenants
from sits_sim.figures import Figure, Report, plain

STAGES: Final = (
    "front door, in", "dispatcher, out", "executor", "dispatcher, back", "front door, out",
)  # fmt: skip
SIZES: Final = (1, 8, 32)
COLD_BYTES: Final = 6 << 20
"""More than a processor's second level cache has."""
TIMEOUT_S: Final = 10.0
METADATA: Final = {"content-type": "application/grpc", "user-agent": "bench"}


class Clock:
    """When the first message left since `start`."""

    def __init__(self) -> None:
        self.started_ns = self.written_ns = 0

    def start(self) -> None:
        self.written_ns, self.started_ns = 0, time.perf_counter_ns()

    def written(self) -> None:
        self.written_ns = self.written_ns or time.perf_counter_ns()


class Wire(Link):
    """One end of a link: what is written into it waits in `sent`."""

    def __init__(self, name: str, clock: Clock) -> None:
        super().__init__(name, name)
        self.sent: deque[bytes] = deque()
        self._clock, self._came = clock, threading.Event()

    def write(self, message: bytes) -> Pressure:
        self._clock.written()
        self.sent.append(message)
        self._came.set()
        return Pressure(True, 0.0)

    def take(self) -> bytes:
        """The executor may answer on another thread."""
        while not self.sent:
            self._came.clear()
            if not self.sent and not self._came.wait(TIMEOUT_S):
                raise TimeoutError(f"nothing came from {self.name}")
        return self.sent.popleft()


class Caller:
    """A call whose answer is counted."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.peer, self.deadline, self.answered = "bench", Deadline.after(60.0), False

    @property
    def metadata(self) -> Metadata:
        return dict(METADATA)

    def on_cancel(self, callback: object) -> None:
        """Nobody cancels."""

    def respond(self, message: bytes, trailers: Trailers = ()) -> None:
        self._clock.written()
        self.answered = True

    def fail(self, error: SitsError) -> None:
        raise error


class Path:
    """The three services and the four ends of their two links."""

    def __init__(self) -> None:
        self.clock = Clock()
        wire = partial(Wire, clock=self.clock)
        self.front_end, self.from_front = wire("front door"), wire("dispatcher to front door")
        self.to_executor, self.executor_end = wire("dispatcher to executor"), wire("executor")
        self.executor, self.mesh = _executor(), _mesh()
        self.engine, self.unary = _front()
        self.executor.listener.opened(self.executor_end)
        self.mesh.executors.opened(self.to_executor)
        hello = LinkMessage(hello=self.executor.identity.hello()).SerializeToString()
        self.mesh.executors.received(self.to_executor, hello)
        self.mesh.fronts.opened(self.from_front)
        front = Hello(role=Role.ROLE_PREPROCESS, id="front", host="here")
        self.mesh.fronts.received(self.from_front, LinkMessage(hello=front).SerializeToString())
        self.engine.opened(self.front_end)
        self._deliver()
        self._request, self._cold = KILOBYTE.grpc(), np.zeros(COLD_BYTES // 8)

    def _deliver(self) -> None:
        """Greetings, models and credits; the front door's greeting is sent for it above."""
        self.front_end.sent.clear()
        self.to_executor.sent.clear()
        while self.executor_end.sent:
            self.mesh.executors.received(self.to_executor, self.executor_end.take())
        while self.from_front.sent:
            self.engine.received(self.front_end, self.from_front.take())

    def batch(self, size: int, *, cold: bool) -> list[tuple[int, int]]:
        """Nanoseconds of each stage: until the next message is written, and in all."""
        calls = [Caller(self.clock) for _ in range(size)]
        arrivals: list[tuple[bytes, Call]] = [(self._request, call) for call in calls]
        took = []

        def stage(step: partial[None], leaves: Wire | None) -> bytes:
            if cold:
                self._cold.sum()
            self.clock.start()
            step()
            message = leaves.take() if leaves is not None else b""
            ended = time.perf_counter_ns()
            started = self.clock.started_ns
            took.append((self.clock.written_ns - started, ended - started))
            return message

        message = stage(partial(self.unary.take, arrivals), self.front_end)
        received = partial(self.mesh.fronts.received, self.from_front, message)
        message = stage(received, self.to_executor)
        received = partial(self.executor.listener.received, self.executor_end, message)
        message = stage(received, self.executor_end)
        received = partial(self.mesh.executors.received, self.to_executor, message)
        message = stage(received, self.from_front)
        stage(partial(self.engine.received, self.front_end, message), None)
        if not all(call.answered for call in calls):
            raise RuntimeError("a batch came back without an answer for each of its requests")
        return took


class Took(NamedTuple):
    """Microseconds, by stage."""

    written: list[float]
    all: list[float]


def measure(path: Path, size: int, batches: int, *, cold: bool) -> Took:
    runs = np.array([path.batch(size, cold=cold) for _ in range(batches)]) / 1e3
    written, whole = np.percentile(runs, 25, axis=0).T
    return Took(written.tolist(), whole.tolist())


def least(rounds: list[Took]) -> Took:
    return Took(
        *(np.min(np.array(column), axis=0).tolist() for column in zip(*rounds, strict=True))
    )


def figures(path: Path, size: int, batches: int, rounds: int) -> list[Figure]:
    warm = least([measure(path, size, batches, cold=False) for _ in range(rounds)])
    cold = least([measure(path, size, batches // 8, cold=True) for _ in range(rounds)])
    ways = (
        ("until written", warm.written), ("in all", warm.all), ("until written, cold", cold.written)
    )  # fmt: skip
    name = f"batch of {size}"
    return [
        plain(f"{name}: {stage}, {way}", value, "µs")
        for way, values in ways
        for stage, value in (*zip(STAGES, values, strict=True), ("all stages", sum(values)))
    ]


def _executor() -> Executor:
    folder = repositories.write("stages", [repositories.echo()])
    settings = load(ExecutorSettings, "executor", {}, executor_model_repository=str(folder))
    payloads = ExecutorPayloads(PoolReader(settings.shm_dir), None, 1 << 15)
    tracer = Tracer("executor", settings.trace_ring, 0.0)
    registry = ProcessRegistry()
    executor = Executor(settings, identify(settings, "executor"), payloads, tracer, registry)
    executor.start()
    for future in executor.manager.load_all():
        future.result()
    return executor


def _mesh() -> Mesh:
    settings = load(DispatcherSettings, "dispatcher", {})
    tracer = Tracer("dispatcher", settings.trace_ring, 0.0)
    return build_mesh(settings, dispatcher_hello(settings), tracer, ProcessRegistry())


def _front() -> tuple[Engine, InferUnary]:
    settings, registry = load(PreprocessSettings, "preprocess", {}), ProcessRegistry()
    memory = SharedMemory(PoolReader(settings.shm_dir), None)
    engine = Engine(
        settings, EngineMetrics(registry), bytes, FrontPayloads(memory, 1 << 15), standard_tenants()
    )
    tracer = Tracer("preprocess", settings.trace_ring, settings.trace_ratio)
    admission = Admission(
        engine.catalog, access_of(settings), regions_of(settings),
        TraceSettings(tracer, engine.catalog).incoming, tracer.new_span_id,
        settings.preprocess_default_timeout_s,
    )  # fmt: skip
    limits = OpenLimits(settings.max_message_bytes, settings.preprocess_open_bytes)
    inference = Inference(engine, admission, Accounts(registry, Statistics(), tracer), limits)
    engine.deliver_to(inference.answered)
    return engine, InferUnary(inference, ThreadPoolExecutor(1))


def body() -> int:
    given = options(__doc__).parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    tune()
    batches, rounds = (500, 2) if given.quick else (3000, 5)
    path = Path()
    measure(path, SIZES[-1], batches // 8, cold=False)
    found = [figure for size in SIZES for figure in figures(path, size, batches, rounds)]
    parameters = {**machine.describe(), "batches": batches, "rounds": rounds}
    return finish("stages", Report(parameters, found), given)


if __name__ == "__main__":
    main(body)
