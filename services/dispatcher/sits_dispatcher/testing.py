"""A dispatcher with fake executors and a fake front, for tests."""

import random
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from sits_channel.bounded import Pressure
from sits_channel.pool_reader import PoolReader
from sits_core.settings import load
from sits_core.tracing import Tracer
from sits_dispatcher.dispatcher import Dispatcher
from sits_dispatcher.job import Front
from sits_dispatcher.metrics import Metrics
from sits_dispatcher.placer import Placer
from sits_dispatcher.settings import DispatcherSettings
from sits_dispatcher.weights import Weights
from sits_protos.v1.common_pb2 import Error, Tensor
from sits_protos.v1.link_pb2 import BatchHeader, LinkMessage, RequestHeader, ResultHeader
from sits_scheduling.candidates import Executor, ExecutorTable
from sits_scheduling.tenant_file import standard_tenants


@dataclass(eq=False)
class Wire:
    """A peer that keeps what it was sent."""

    accepts: bool = True
    raw: list[bytes] = field(default_factory=list)
    closed: bool = False
    peer: str = "peer:1"

    def write(self, message: bytes) -> Pressure:
        if self.accepts:
            self.raw.append(message)
        return Pressure(self.accepts, 0.0)

    def close(self) -> None:
        self.closed = True

    @property
    def sent(self) -> list[LinkMessage]:
        return [LinkMessage.FromString(message) for message in self.raw]

    def batches(self) -> list[BatchHeader]:
        return [m.batch for m in self.sent if m.HasField("batch")]

    def results(self) -> list[ResultHeader]:
        return [m.result for m in self.sent if m.HasField("result")]


class World:
    """A dispatcher with fake executors and one fake front."""

    def __init__(
        self, *executors: str, slots: int = 2, micro_batch_rows: int = 0, **settings: object
    ) -> None:
        values = load(
            DispatcherSettings, "dispatcher", {}, dispatcher_strategy="round_robin", **settings
        )
        self.table = ExecutorTable()
        placer = Placer(self.table, "round_robin", random.Random(1))  # noqa: S311 - ties only
        self.registry = CollectorRegistry()
        metrics = Metrics(self.registry)
        self.dispatcher = Dispatcher(
            values,
            self.table,
            placer,
            Weights(),
            PoolReader("/nowhere"),
            Tracer("t", 100, 0),
            metrics,
            standard_tenants(),
        )
        self.front_wire = Wire()
        self.front = Front(self.front_wire, id="front")
        self.executors = {name: self.join(name, slots, micro_batch_rows) for name in executors}

    def join(self, name: str, slots: int = 2, micro_batch_rows: int = 0) -> Wire:
        peer = Wire()
        self.table.add(Executor(name))
        self.dispatcher.executor_joined(name, peer)
        self.table.serve(name, "m/1", slots, 1, micro_batch_rows)
        self.dispatcher.pump()
        return peer

    def lose(self, name: str) -> None:
        self.table.remove(name)
        self.dispatcher.executor_lost(name)

    def send(
        self,
        batch_id: int = 1,
        requests: int = 1,
        rows: int = 1,
        deadline: int = 0,
        tenant: str = "",
        earliest: int = 0,
    ) -> None:
        message = LinkMessage(
            requests=[RequestHeader(id=f"r{i}", rows=rows) for i in range(requests)],
            inputs=[Tensor(name="x", datatype="UINT8", shape=[requests * rows, 1],
                           inline=bytes(range(requests * rows)))],
        )  # fmt: skip
        header = BatchHeader(
            batch_id=batch_id, model="m", version="1", requests=requests, rows=requests * rows,
            latest_deadline_unix_ns=deadline, earliest_deadline_unix_ns=earliest, tenant=tenant,
        )  # fmt: skip
        body = memoryview(message.SerializeToString())
        self.dispatcher.batch(self.front, header.SerializeToString(), body)

    def answer(self, name: str, batch_id: int, body: bytes = b"") -> None:
        header = ResultHeader(batch_id=batch_id, instance=name)
        self.dispatcher.result(name, header.SerializeToString(), memoryview(body))

    def open(self, name: str) -> list[int]:
        """Batches that `name` has not answered."""
        return [j.key for j in self.dispatcher._in_flight.values() if j.executor == name]

    def fail(self, name: str, error: Error) -> None:
        header = ResultHeader(batch_id=self.open(name)[0], error=error)
        self.dispatcher.result(name, header.SerializeToString(), memoryview(b""))

    def fail_batch(self, name: str, own_id: int, error: Error) -> None:
        header = ResultHeader(batch_id=own_id, error=error)
        self.dispatcher.result(name, header.SerializeToString(), memoryview(b""))

    def idle(self) -> bool:
        return self.table.batches_in_flight() == 0 and self.dispatcher.counts() == (0, 0)
