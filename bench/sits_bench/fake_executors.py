"""Executors that hold a lease and a link and serve a model of the real one, without running it.

They live as threads of the benchmark's process: what the mesh does about them is real, what
they do costs next to nothing.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import grpc
from pydantic import SecretStr

from sits_bench.loadgen import BenchError
from sits_bench.system import until
from sits_channel import wire
from sits_channel.link import Link, link_handler
from sits_cli.mesh import Mesh
from sits_cli.ports import free_ports
from sits_core.clock import now_ns
from sits_core.identity import host_id, new_process_id
from sits_core.keepers import LeaseKeeper
from sits_core.redis_registry import connect
from sits_core.rpc import Server
from sits_core.settings import Settings
from sits_protos.v1 import control_pb2 as control
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import (
    Catalog,
    Hello,
    LinkMessage,
    ModelEntry,
    RequestResult,
    ResultHeader,
    Role,
)
from sits_protos.v1.registry_pb2 import Lease

JOIN_S = 30.0

Answer = Callable[[LinkMessage], LinkMessage | None]
"""What a batch is answered with; None = it stays where it is, as with a busy executor."""


class FakeExecutor:
    """One of them. `held` are the batches it has taken and not answered."""

    def __init__(self, address: str, entry: ModelEntry, answer: Answer) -> None:
        self.address, self.id = address, new_process_id("executor")
        self.held = 0
        self._entry, self._answer = entry, answer

    def hello(self) -> Hello:
        return Hello(
            role=Role.ROLE_EXECUTOR,
            id=self.id,
            host=host_id(),
            numa_node=-1,
            software_version="fake",
            control_address=self.address,
            device="cpu:0",
        )

    def lease(self) -> Lease:
        return Lease(
            role=Role.ROLE_EXECUTOR,
            id=self.id,
            address=self.address,
            control_address=self.address,
            host=host_id(),
            device="cpu:0",
            started_unix_ns=now_ns(),
        )

    # link listener

    def opened(self, link: Link) -> None:
        catalog = Catalog(models=[self._entry], revision=1)
        link.write(LinkMessage(catalog=catalog).SerializeToString())

    def received(self, link: Link, message: bytes) -> None:
        if wire.split(message).kind != wire.BATCH:
            return
        answer = self._answer(LinkMessage.FromString(message))
        if answer is None:
            self.held += 1
        else:
            answer.result.instance = self.id
            link.write(answer.SerializeToString())

    def closed(self, link: Link, reason: str) -> None:
        """The mesh has ended."""


@contextmanager
def registered(
    mesh: Mesh, model: str, count: int, answer: Answer, *, slots: int = 1
) -> Iterator[Sequence[FakeExecutor]]:
    """`count` of them next to the real ones of a running mesh, each with room for `slots`
    batches of `model`. Linked when entered. Raises `BenchError` when they are not."""
    settings = Settings(redis_url=SecretStr(mesh.redis_url or ""))
    entry = _entry(mesh, model, slots)
    shared = connect(settings)
    with ExitStack() as stack:
        executors = []
        for port in free_ports(count):
            fake = FakeExecutor(f"127.0.0.1:{port}", entry, answer)
            _serve(fake, settings, stack)
            keeper = LeaseKeeper(shared, fake.lease)
            keeper.start()
            stack.callback(keeper.stop)
            executors.append(fake)
        _wait_linked(mesh, {fake.id for fake in executors})
        yield executors


def _serve(fake: FakeExecutor, settings: Settings, stack: ExitStack) -> None:
    def greeting() -> bytes:
        return LinkMessage(hello=fake.hello()).SerializeToString()

    server = Server(fake.address, settings)
    server.add_handler(link_handler("sits.v1.Execute", fake, greeting), "sits.v1.Execute")
    server.start()
    # Without a grace: there are many, and nobody waits for what they hold.
    stack.callback(server.stop, 0.0)
    server.set_ready(True)


def _entry(mesh: Mesh, model: str, slots: int) -> ModelEntry:
    """The model as the real executor announces it."""
    found = [entry for entry in state(mesh).models if entry.name == model]
    if not found:
        raise BenchError(f"the mesh does not know model {model}")
    entry = ModelEntry()
    entry.CopyFrom(found[0])
    entry.slots, entry.instances = slots, slots
    return entry


def state(mesh: Mesh) -> control.GetStateResponse:
    """What the dispatcher knows."""
    with grpc.insecure_channel(mesh.addresses.dispatcher) as channel:
        return ControlStub(channel).GetState(control.GetStateRequest(), timeout=5)


def _wait_linked(mesh: Mesh, ids: set[str]) -> None:
    def linked() -> bool:
        return ids <= {peer.hello.id for peer in state(mesh).peers if peer.connected}

    until(linked, JOIN_S, f"links to {len(ids)} executors")


def hold(_message: LinkMessage) -> LinkMessage | None:
    """The answer of a busy executor."""
    return None


def echo(message: LinkMessage) -> LinkMessage:
    """The answer of an identity model."""
    answer = LinkMessage(
        result=ResultHeader(
            batch_id=message.batch.batch_id,
            requests=message.batch.requests,
            executed_rows=message.batch.rows,
            version=message.batch.version,
        ),
        results=[RequestResult(rows=request.rows, final=True) for request in message.requests],
        outputs=message.inputs,
    )
    for tensor in answer.outputs:
        tensor.name = "OUTPUT"
    return answer


class Recorder:
    """Answers as `echo`, and keeps what `measure` says of each batch. Safe from any thread."""

    def __init__(self, measure: Callable[[LinkMessage], float]) -> None:
        self._measure = measure
        self._lock = threading.Lock()
        self.values: list[float] = []

    def __call__(self, message: LinkMessage) -> LinkMessage:
        with self._lock:
            self.values.append(self._measure(message))
        return echo(message)


def fill(fakes: Sequence[FakeExecutor], send: Callable[[], object], patience_s: float) -> None:
    """Call `send`, which starts one request, until every fake holds a batch."""
    limit = time.monotonic() + patience_s
    while any(not fake.held for fake in fakes):
        if time.monotonic() > limit:
            busy = sum(fake.held > 0 for fake in fakes)
            raise BenchError(f"only {busy} of {len(fakes)} executors could be kept busy")
        send()
        time.sleep(0.005)
