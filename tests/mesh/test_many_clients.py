"""Many clients and streams at once, patient ones among them (OIP-14, GRP-01, GRP-04)."""

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Empty, Queue
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as oip
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub

from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import idle, pid_of, plan, running, tensor
from sits_cli.testing_process import descriptor_count, private_bytes, thread_count
from sits_core.testing import wait_until
from sits_protos.v1.inference_pb2 import InferBatchesRequest
from sits_protos.v1.inference_pb2_grpc import InferenceStub

pytestmark = pytest.mark.mesh

TIMEOUT_S = 30
MB = 1 << 20
Client = triton.InferenceServerClient


@pytest.fixture(scope="module", autouse=True)
def _patient_clients_wait_meanwhile(patient: Any) -> None:
    """They have to wait so long that it is best done beside everything else here."""


def value(number: int) -> np.ndarray:
    return np.full((1, 4), number, np.float32)


def in_threads(count: int, work: Callable[[int], object]) -> None:
    with ThreadPoolExecutor(count) as pool:
        for _ in pool.map(work, range(count)):
            pass


def test_threads_that_share_a_client_get_their_own_answers(client: Client) -> None:
    """OIP-14: 16 threads."""

    def work(thread: int) -> None:
        for number in range(25):
            sent = value(thread * 1000 + number)
            result = client.infer("brief", [tensor(sent)], client_timeout=TIMEOUT_S)
            assert np.array_equal(result.as_numpy("Y"), sent)

    in_threads(16, work)


def test_streams_side_by_side_keep_their_answers_in_order(mesh: Mesh) -> None:
    """OIP-14: 16 clients push 300 ids each; none is missing, doubled or of somebody else."""

    def work(number: int) -> None:
        answers: Queue[tuple[triton.InferResult | None, object]] = Queue()
        with Client(mesh.addresses.front) as own:
            own.start_stream(lambda result, error: answers.put((result, error)))
            for i in range(300):
                data = value(number * 1000 + i)
                own.async_stream_infer("identity_fp32", [tensor(data)], request_id=f"{number}-{i}")
            for i in range(300):
                result, error = answers.get(timeout=TIMEOUT_S)
                assert error is None
                assert result is not None
                assert result.get_response().id == f"{number}-{i}"
                assert np.array_equal(result.as_numpy("Y"), value(number * 1000 + i))
            own.stop_stream()
        with pytest.raises(Empty):
            answers.get_nowait()

    in_threads(16, work)


def ask(number: int) -> oip.ModelInferRequest:
    request = oip.ModelInferRequest(model_name="identity_fp32", id=str(number))
    request.inputs.add(name="X", datatype="FP32", shape=[1, 4])
    request.raw_input_contents.append(value(number).tobytes())
    return request


def test_raw_calls_on_one_connection_do_not_meet(mesh: Mesh) -> None:
    """OIP-14: 8 bidirectional calls on one channel."""
    with grpc.insecure_channel(mesh.addresses.front) as channel:
        stub = Stub(channel)

        def work(number: int) -> None:
            sent = [number * 1000 + i for i in range(100)]
            answers = stub.ModelStreamInfer(map(ask, sent), timeout=TIMEOUT_S)
            got = [a.infer_response.raw_output_contents[0] for a in answers]
            assert got == [value(n).tobytes() for n in sent]

        in_threads(8, work)


def test_streams_opened_and_closed_leave_nothing_behind(mesh: Mesh, client: Client) -> None:
    """OIP-14: 100 times 50 requests on one client; threads and descriptors as before."""
    fronts = pid_of(mesh, "preprocess")

    def once() -> None:
        answers: Queue[tuple[triton.InferResult | None, object]] = Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number in range(50):
            client.async_stream_infer("identity_fp32", [tensor(value(number))])
        for number in range(50):
            result, error = answers.get(timeout=TIMEOUT_S)
            assert error is None
            assert result is not None
            assert np.array_equal(result.as_numpy("Y"), value(number))
        client.stop_stream()

    for _ in range(3):
        once()
    threads, descriptors = thread_count(fronts), descriptor_count(fronts)
    for _ in range(100):
        once()
    wait_until(lambda: thread_count(fronts) <= threads + 2, TIMEOUT_S, f"{threads} threads")
    wait_until(lambda: descriptor_count(fronts) <= descriptors, TIMEOUT_S, "descriptors closed")


def test_a_reader_who_stops_reading_blocks_nobody_and_takes_bounded_memory(mesh: Mesh) -> None:
    """GRP-04: 1,000 answers of 200 kB wait for it."""
    big = oip.ModelInferRequest(model_name="identity_fp32")
    big.inputs.add(name="X", datatype="FP32", shape=[1, 50_000])
    big.raw_input_contents.append(bytes(200_000))
    fronts = pid_of(mesh, "preprocess")
    before = private_bytes(fronts)
    stop = threading.Event()

    def requests() -> Iterator[oip.ModelInferRequest]:
        for _ in range(1000):
            yield big
        stop.wait(TIMEOUT_S)

    with grpc.insecure_channel(mesh.addresses.front) as channel:
        stuck = Stub(channel).ModelStreamInfer(requests(), timeout=TIMEOUT_S)
        next(stuck)
        with Load(mesh.addresses.front, clients=2) as load:
            load.wait_for_more(100)
        assert load.all_right, load
        assert private_bytes(fronts) < before + 200 * MB
        stuck.cancel()
        stop.set()
    wait_until(lambda: idle(mesh, but=1), TIMEOUT_S, "nothing in flight")


VANISHING = """
import sys, time, numpy as np, tritonclient.grpc as triton
client = triton.InferenceServerClient(sys.argv[1])
client.start_stream(lambda result, error: print("answer", flush=True))
x = triton.InferInput("X", (1, 4), "FP32")
x.set_data_from_numpy(np.ones((1, 4), np.float32))
client.async_stream_infer("brief", [x])
time.sleep(60)
"""


def test_a_client_that_vanishes_ends_its_stream_here_too(mesh: Mesh) -> None:
    """GRP-04: kill -9, no half-close."""
    fronts = pid_of(mesh, "preprocess")
    descriptors = descriptor_count(fronts)
    command = [sys.executable, "-c", VANISHING, mesh.addresses.front]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"answer\n"
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: descriptor_count(fronts) <= descriptors, TIMEOUT_S, "its connection closed")
    wait_until(lambda: idle(mesh, but=1), TIMEOUT_S, "nothing in flight")


def test_a_half_closed_stream_is_answered_to_the_end(mesh: Mesh) -> None:
    """GRP-04."""
    with grpc.insecure_channel(mesh.addresses.front) as channel:
        answers = Stub(channel).ModelStreamInfer(map(ask, range(64)), timeout=TIMEOUT_S)
        assert [a.infer_response.id for a in answers] == [str(n) for n in range(64)]
        assert answers.code() == grpc.StatusCode.OK


def test_stopping_with_fifty_open_streams_keeps_the_grace(few_models: Path, tmp_path: Path) -> None:
    """GRP-04: each stream ends with a status, and the process within its grace and a second."""
    grace_s = 3.0
    own = plan(few_models, tmp_path, executors=1, env={"SITS_DRAIN_GRACE_S": str(grace_s)})
    with running(own, "brief") as mesh, grpc.insecure_channel(mesh.addresses.front) as channel:
        release = threading.Event()

        def first_then_silence() -> Iterator[oip.ModelInferRequest]:
            yield ask(1)
            release.wait(TIMEOUT_S)

        def silence() -> Iterator[InferBatchesRequest]:
            yield InferBatchesRequest(batch_id=1)
            release.wait(TIMEOUT_S)

        streams = [Stub(channel).ModelStreamInfer(first_then_silence()) for _ in range(25)]
        batches = [InferenceStub(channel).InferBatches(silence()) for _ in range(25)]
        for stream in streams:
            next(stream)
        started_s = time.monotonic()
        pid = pid_of(mesh, "preprocess")
        mesh.kill("preprocess", signal.SIGTERM, restart=False)
        wait_until(lambda: mesh.pid("preprocess") != pid, grace_s + 1, "the front door ended")
        codes = [stream.code() for stream in (*streams, *batches)]
        release.set()
        assert time.monotonic() - started_s < grace_s + 2
        assert set(codes) == {grpc.StatusCode.UNAVAILABLE}


def test_patient_clients_that_ping_are_not_thrown_off(patient: Any) -> None:
    """GRP-01: idle, with an idle stream, and with one long request, for 42 s at 10 s pings; a
    server that minds them ends the connection at the fourth."""
    result, error = patient.waited.get(timeout=patient.PATIENCE_S + TIMEOUT_S)
    assert error is None
    assert result is not None
    data = value(7)
    patient.streaming.async_stream_infer("brief", [tensor(data)])
    result, error = patient.streamed.get(timeout=TIMEOUT_S)
    assert error is None
    assert result is not None
    assert np.array_equal(result.as_numpy("Y"), data)
    with pytest.raises(Empty):
        patient.streamed.get_nowait()
    assert patient.idle.infer("brief", [tensor(data)], client_timeout=TIMEOUT_S) is not None
