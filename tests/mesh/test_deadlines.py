"""One deadline, fixed at the edge, is seen by every stage (GRP-05): front door and dispatcher
are real, the executor is one that shows what it was sent."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as oip
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub
from tritonclient.utils import InferenceServerException

from sits_channel.link import Link, link_handler
from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import plan, running, status_of, tensor
from sits_core.clock import now_ns
from sits_core.errors import DeadlineExceeded
from sits_core.testing import free_port
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import (
    Catalog,
    Hello,
    LinkMessage,
    ModelEntry,
    ModelState,
    RequestResult,
    ResultHeader,
    Role,
)

pytestmark = pytest.mark.mesh

MODEL = "shown"
TIMEOUT_S = 20
S, YEAR_S = 1_000_000_000, 365 * 24 * 3600
X = [tensor(np.ones((1, 4), np.float32))]
Client = triton.InferenceServerClient


class Glass:
    """An executor whose batches a test can look at. Answers at once unless told to `hold`."""

    def __init__(self) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self.batches: Queue[LinkMessage] = Queue()
        self.cancels: Queue[LinkMessage] = Queue()
        self.hold = self.late = False

    def opened(self, link: Link) -> None:
        link.write(LinkMessage(catalog=Catalog(models=[self._entry()])).SerializeToString())

    def received(self, link: Link, message: bytes) -> None:
        parsed = LinkMessage.FromString(message)
        if parsed.HasField("batch"):
            self.batches.put(parsed)
            if not self.hold:
                link.write(self._answer(parsed).SerializeToString())
        elif parsed.HasField("cancel"):
            self.cancels.put(parsed)

    def closed(self, link: Link, reason: str) -> None:
        return None

    def greeting(self) -> bytes:
        hello = Hello(role=Role.ROLE_EXECUTOR, id="glass", control_address=self.address)
        return LinkMessage(hello=hello).SerializeToString()

    def _answer(self, batch: LinkMessage) -> LinkMessage:
        header = ResultHeader(
            batch_id=batch.batch.batch_id, requests=batch.batch.requests, instance="glass"
        )
        if self.late:
            header.error.CopyFrom(DeadlineExceeded("too late in here").to_proto())
            return LinkMessage(result=header)
        x = batch.inputs[0]
        results = [RequestResult(rows=r.rows, final=True) for r in batch.requests]
        y = Tensor(name="Y", datatype=x.datatype, shape=x.shape, inline=x.inline)
        return LinkMessage(result=header, results=results, outputs=[y])

    @staticmethod
    def _entry() -> ModelEntry:
        config = ModelConfig(name=MODEL, max_batch_size=8)
        metadata = ModelMetadataResponse(name=MODEL, versions=["1"], platform="glass")
        for name, entries, tensors in (
            ("X", config.input, metadata.inputs),
            ("Y", config.output, metadata.outputs),
        ):
            entries.add(name=name, data_type=DataType.TYPE_FP32, dims=[-1])
            tensors.add(name=name, datatype="FP32", shape=[-1, -1])
        return ModelEntry(
            name=MODEL, version="1", state=ModelState.MODEL_STATE_READY, slots=8, instances=4,
            metadata=metadata.SerializeToString(), config=config.SerializeToString(),
        )  # fmt: skip


@pytest.fixture(scope="module")
def serving() -> Iterator[Glass]:
    made, server = Glass(), grpc.server(ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((link_handler("sits.v1.Execute", made, made.greeting),))
    server.add_insecure_port(made.address)
    server.start()
    yield made
    server.stop(0).wait(5)


@pytest.fixture(scope="module")
def staged(
    serving: Glass, few_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mesh]:
    own = plan(
        few_models,
        tmp_path_factory.mktemp("staged"),
        executors=0,
        service_env={"dispatcher": {"SITS_DISPATCHER_EXECUTORS": serving.address}},
    )
    with running(own, MODEL) as made:
        yield made


@pytest.fixture
def glass(serving: Glass) -> Glass:
    serving.hold = serving.late = False
    for box in (serving.batches, serving.cancels):
        while not box.empty():
            box.get_nowait()
    return serving


@pytest.fixture
def client(staged: Mesh) -> Iterator[Client]:
    with Client(staged.addresses.front) as made:
        yield made


def unary(client: Client, **options: Any) -> None:
    client.infer(MODEL, X, **options)


def streamed(client: Client, client_timeout: float | None = None, **options: Any) -> None:
    answers: Queue[Any] = Queue()
    client.start_stream(lambda result, error: answers.put(error), stream_timeout=client_timeout)
    try:
        client.async_stream_infer(MODEL, X, **options)
        if (error := answers.get(timeout=TIMEOUT_S)) is not None:
            raise error
    finally:
        client.stop_stream()


both_ways = pytest.mark.parametrize("call", [unary, streamed])


def seen(glass: Glass) -> tuple[int, int, int, int]:
    """Deadlines that the dispatcher reads, the one the executor reads, and the closing time."""
    batch = glass.batches.get(timeout=TIMEOUT_S)
    header = batch.batch
    return (
        header.earliest_deadline_unix_ns,
        header.latest_deadline_unix_ns,
        batch.requests[0].deadline_unix_ns,
        header.closed_unix_ns,
    )


@both_ways
def test_without_a_deadline_none_is_made_up(client: Client, glass: Glass, call: Any) -> None:
    call(client)
    assert seen(glass)[:3] == (0, 0, 0)


@both_ways
def test_every_stage_has_the_same_deadline_and_a_little_less_time(
    client: Client, glass: Glass, call: Any
) -> None:
    started_ns = now_ns()
    call(client, client_timeout=10)
    earliest, latest, own, closed_ns = seen(glass)
    arrived_ns = now_ns()
    assert earliest == latest == own
    left = [own - at for at in (started_ns, closed_ns, arrived_ns)]
    assert left == sorted(left, reverse=True)
    assert left[0] <= 10.5 * S
    assert left[-1] > 0


@both_ways
def test_a_very_large_deadline_is_no_instant_timeout(
    client: Client, glass: Glass, call: Any
) -> None:
    call(client, client_timeout=YEAR_S)
    own = seen(glass)[2]
    assert own == 0 or own - now_ns() > 0.9 * YEAR_S * S


@both_ways
def test_an_expired_request_is_refused_before_any_work(
    client: Client, glass: Glass, call: Any
) -> None:
    """The timeout parameter is a microsecond, long over when the request has been read."""
    with pytest.raises(InferenceServerException, match="expired"):
        call(client, timeout=1)
    call(client)
    assert seen(glass)[2] == 0
    assert glass.batches.empty()


def test_a_deadline_that_passes_further_in_ends_the_call_and_cancels_the_work(
    client: Client, glass: Glass
) -> None:
    """100 ms, and an executor that does not answer."""
    glass.hold = True
    status, _ = status_of(lambda: client.infer(MODEL, X, client_timeout=0.1))
    assert status == "DEADLINE_EXCEEDED"
    batch = glass.batches.get(timeout=TIMEOUT_S).batch
    assert glass.cancels.get(timeout=TIMEOUT_S).cancel.batch_id == batch.batch_id


def test_the_timeout_parameter_is_answered_by_the_server_in_a_stream_too(
    client: Client, glass: Glass
) -> None:
    glass.hold = True
    with pytest.raises(InferenceServerException, match="timeout expired"):
        streamed(client, timeout=100_000)


def test_a_timeout_at_an_inner_hop_is_one_for_the_client(
    staged: Mesh, client: Client, glass: Glass
) -> None:
    """DEADLINE_EXCEEDED, not INTERNAL."""
    glass.late = True
    status, text = status_of(lambda: client.infer(MODEL, X, client_timeout=10))
    assert (status, "too late in here" in text) == ("DEADLINE_EXCEEDED", True)
    request = oip.ModelInferRequest(model_name=MODEL)
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1])
    request.raw_input_contents.append(bytes(4))
    with grpc.insecure_channel(staged.addresses.front) as channel:
        (answer,) = Stub(channel).ModelStreamInfer(iter([request]), timeout=TIMEOUT_S)
    status = answer.infer_response.parameters["sits_status"].string_param
    assert status == "DEADLINE_EXCEEDED"
