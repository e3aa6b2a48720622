"""An engine with dispatchers that keep what they were sent, for tests."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from prometheus_client import CollectorRegistry

from sits_channel.bounded import Pressure
from sits_channel.link import Link
from sits_channel.pool_reader import PoolReader
from sits_channel.shared_memory import SharedMemory
from sits_core.clock import now_ns
from sits_core.errors import SitsError
from sits_preprocess.engine import Engine
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.payloads import Payloads
from sits_preprocess.request import Answer, Answered, Request, TensorData
from sits_preprocess.settings import PreprocessSettings
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import (
    Catalog,
    Credit,
    Credits,
    Hello,
    LinkMessage,
    ModelEntry,
    ModelState,
    RequestResult,
    ResultHeader,
)
from sits_scheduling.tenant_file import parse_tenants, standard_tenants
from sits_scheduling.tenants import Tenants


@dataclass(eq=False)
class FakeLink:
    """A link to a dispatcher that keeps what it was sent."""

    peer: str = "dispatcher:1"
    accepts: bool = True
    sent: list[LinkMessage] = field(default_factory=list)

    def write(self, message: bytes) -> Pressure:
        if self.accepts:
            self.sent.append(LinkMessage.FromString(message))
        return Pressure(self.accepts, 0.0)

    def close(self) -> None:
        self.accepts = False

    @property
    def batches(self) -> list[LinkMessage]:
        return [m for m in self.sent if m.HasField("batch")]

    @property
    def cancels(self) -> list[LinkMessage]:
        return [m for m in self.sent if m.HasField("cancel")]


NO_POOL = Payloads(SharedMemory(PoolReader("/nowhere"), None), 1)


class World:
    """An engine and the dispatchers it is linked to."""

    def __init__(self, max_batch: int = 8, tenants: Tenants | None = None, **settings: Any) -> None:
        values = PreprocessSettings(preprocess_wait_s=0.2, **settings)
        self.config = ModelConfig(name="m", max_batch_size=max_batch)
        self.registry = CollectorRegistry()
        self.engine = Engine(
            values,
            EngineMetrics(self.registry),
            lambda: b"\x0a\x00",
            NO_POOL,
            tenants or standard_tenants(),
        )
        self.engine.deliver_to(self.collect)
        self.engine.start()
        self.answers: dict[str, list[Answer]] = {}
        self.lock = threading.Lock()

    def collect(self, answered: Sequence[Answered]) -> None:
        with self.lock:
            for request, answer in answered:
                self.answers.setdefault(request.id, []).append(answer)

    def link(
        self, window: int = 2, instances: int = 1, process: str = "d1", peer: str = "dispatcher:1"
    ) -> FakeLink:
        link = FakeLink(peer)
        self.engine.opened(cast("Link", link))
        self.tell(link, LinkMessage(hello=Hello(id=process)))
        self.tell(link, LinkMessage(catalog=Catalog(models=[self.entry()])))
        self.credit(link, window, instances)
        return link

    def entry(self) -> ModelEntry:
        return ModelEntry(
            name="m", version="1", state=ModelState.MODEL_STATE_READY,
            config=self.config.SerializeToString(),
            metadata=ModelMetadataResponse(name="m").SerializeToString(),
        )  # fmt: skip

    def credit(self, link: FakeLink, window: int, instances: int = 1) -> None:
        credit = Credit(model="m", version="1", window=window, instances=instances)
        self.tell(link, LinkMessage(credits=Credits(models=[credit])))

    def tell(self, link: FakeLink, message: LinkMessage) -> None:
        self.engine.received(cast("Link", link), message.SerializeToString())

    def request(self, name: str, rows: int = 1, **values: Any) -> Request:
        data = name.encode().ljust(4, b".") * rows
        x = TensorData("x", "UINT8", (rows, 4), data)
        return Request(
            lambda _result: None, id=name, model="m", version="1", inputs=(x,), rows=rows,
            payload_bytes=len(data), **values,
        )  # fmt: skip

    def submit(self, name: str, rows: int = 1, **values: Any) -> Request:
        request = self.request(name, rows, **values)
        self.engine.submit([request])
        return request

    def complete(self, link: FakeLink, batch: LinkMessage, run_ns: int = 1000) -> None:
        """Answer a batch as an identity model would."""
        x = batch.inputs[0]
        header = ResultHeader(
            batch_id=batch.batch.batch_id,
            requests=batch.batch.requests,
            instance="e1",
            executed_rows=batch.batch.rows,
        )
        header.times.input_started = now_ns()
        header.times.executor_sent = header.times.input_started + run_ns
        message = LinkMessage(
            result=header,
            results=[RequestResult(rows=r.rows, final=True) for r in batch.requests],
            outputs=[Tensor(name="y", datatype=x.datatype, shape=x.shape, inline=x.inline)],
        )
        self.tell(link, message)

    def data(self, name: str) -> bytes:
        (answer,) = self.answers[name]
        if answer.error is not None:
            raise answer.error
        return bytes(answer.outputs[0].data)

    def error(self, name: str) -> object:
        (answer,) = self.answers[name]
        return answer.error


def names(batch: LinkMessage) -> list[str]:
    return list(batch.batch.request_ids)


TENANTS = (
    '{"tenants": {"few": {"tier": "bronze", "max_waiting": 2}, '
    '"slow": {"tier": "gold", "rate_per_s": 0.001, "burst": 1}}}'
)
LONG_NS = 10_000_000_000


class Busy:
    """One instance that runs a batch of 8 rows for 10 s, which is known of it."""

    def __init__(self, **settings: Any) -> None:
        self.world = World(tenants=parse_tenants(TENANTS), **settings)
        self.link = self.world.link(window=1)
        self.world.submit("warm", rows=8)
        self.finish()
        self.world.submit("running", rows=8)

    def finish(self) -> None:
        self.world.complete(self.link, self.link.batches[-1], run_ns=LONG_NS)

    def error(self, name: str, **values: Any) -> SitsError | None:
        """What a request is refused with; None when it is taken."""
        self.world.submit(name, **values)
        (answer,) = self.world.answers.get(name, [Answer()])
        return answer.error
