"""Work whose caller gave up or ran out of time is dropped, and never executed (OIP-13)."""

import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from queue import Queue
from subprocess import PIPE

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import executor_metric, idle, metric, runs, tensor
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

MODEL = "very_slow"
"""Sleeps a second, takes one request at a time."""
PATIENT = "patient"
"""Sleeps half a second a row, takes one request at a time."""
TIMEOUT_S = 20
X = [tensor(np.ones((1, 4), np.float32))]
GAVE_UP = {"CANCELLED", "DEADLINE_EXCEEDED"}


class Answers:
    """Callback of tritonclient that keeps how each call ended."""

    def __init__(self) -> None:
        self._box: Queue[str] = Queue()

    def __call__(
        self, result: triton.InferResult | None, error: InferenceServerException | None
    ) -> None:
        status = "OK" if error is None else str(error.status()).removeprefix("StatusCode.")
        self._box.put(status)

    def take(self, count: int) -> Counter[str]:
        return Counter(self._box.get(timeout=TIMEOUT_S) for _ in range(count))


def dropped(mesh: Mesh) -> float:
    return executor_metric(mesh, "sits_executor_dropped_total")


def all_released(mesh: Mesh) -> None:
    """Queue places, batch slots and shared memory."""
    wait_until(lambda: idle(mesh), TIMEOUT_S, "nothing in flight")
    places = (mesh.addresses.front_metrics, mesh.addresses.executors[0][1])
    wait_until(
        lambda: all(metric(at, "sits_pool_slots") == 0 for at in places), TIMEOUT_S, "no slot lent"
    )


@pytest.fixture
def client(solo: Mesh) -> triton.InferenceServerClient:
    return triton.InferenceServerClient(solo.addresses.front)


@contextmanager
def occupied(
    mesh: Mesh, client: triton.InferenceServerClient, model: str, inputs: list[triton.InferInput]
) -> Iterator[None]:
    """The only instance of `model` runs `inputs`, which must be answered in the end."""
    wait_until(lambda: idle(mesh), TIMEOUT_S, "nothing in flight")
    answers = Answers()
    client.async_infer(model, inputs, answers)
    wait_until(lambda: not idle(mesh), what="the instance is busy")
    yield
    assert answers.take(1) == {"OK": 1}
    all_released(mesh)


@pytest.fixture
def busy(
    solo: Mesh, client: triton.InferenceServerClient
) -> Iterator[triton.InferenceServerClient]:
    """The only instance runs something for the next second."""
    with occupied(solo, client, MODEL, X):
        yield client


def test_requests_that_run_out_of_time_in_the_queue_never_run(
    solo: Mesh, busy: triton.InferenceServerClient
) -> None:
    before, answers = runs(solo, MODEL), Answers()
    for _ in range(10):
        busy.async_infer(MODEL, X, answers, client_timeout=0.3)
    assert answers.take(10) == {"DEADLINE_EXCEEDED": 10}
    busy.infer("brief", X, client_timeout=TIMEOUT_S)
    wait_until(lambda: idle(solo), TIMEOUT_S, "nothing in flight")
    assert runs(solo, MODEL) == before + 1, "the one that was running"


def test_the_timeout_parameter_does_the_same(
    solo: Mesh, busy: triton.InferenceServerClient
) -> None:
    before, answers = runs(solo, MODEL), Answers()
    for _ in range(10):
        busy.async_infer(MODEL, X, answers, timeout=200_000)
    assert answers.take(10) == {"DEADLINE_EXCEEDED": 10}
    wait_until(lambda: idle(solo), TIMEOUT_S, "nothing in flight")
    assert runs(solo, MODEL) == before + 1


def test_cancels_at_random_moments_release_all(
    solo: Mesh, busy: triton.InferenceServerClient
) -> None:
    rng, before, answers = random.Random(7), runs(solo, MODEL), Answers()
    calls = [busy.async_infer(MODEL, X, answers) for _ in range(10)]
    timers = [threading.Timer(rng.random() / 2, call.cancel) for call in calls]
    for timer in timers:
        timer.start()
    assert answers.take(10) == {"CANCELLED": 10}
    wait_until(lambda: idle(solo), TIMEOUT_S, "nothing in flight")
    assert runs(solo, MODEL) == before + 1


def test_a_stream_stopped_with_its_requests_leaves_none_behind(
    solo: Mesh, busy: triton.InferenceServerClient
) -> None:
    before = runs(solo, MODEL)
    with triton.InferenceServerClient(solo.addresses.front) as streaming:
        answers = Answers()
        streaming.start_stream(answers)
        for _ in range(5):
            streaming.async_stream_infer(MODEL, X)
        queued = solo.addresses.front_metrics
        wait_until(lambda: metric(queued, "sits_preprocess_queued") > 0, what="they wait")
        streaming.stop_stream(cancel_requests=True)
    wait_until(lambda: idle(solo), TIMEOUT_S, "nothing in flight")
    assert runs(solo, MODEL) == before + 1


KILLED_CLIENT = """
import sys, time, numpy as np, tritonclient.grpc as triton
client = triton.InferenceServerClient(sys.argv[1])
x = triton.InferInput("X", (1,), "FP32")
x.set_data_from_numpy(np.ones(1, np.float32))
print("ready", flush=True)
sys.stdin.readline()
for _ in range(20):
    client.async_infer(sys.argv[2], [x], lambda result, error: None)
print("sent", flush=True)
time.sleep(60)
"""


def test_a_client_killed_with_requests_waiting_takes_them_with_it(
    solo: Mesh, client: triton.InferenceServerClient
) -> None:
    """The instance is busy from when the client is ready to send, however long that took it."""
    before, front = runs(solo, PATIENT), solo.addresses.front_metrics
    command = [sys.executable, "-c", KILLED_CLIENT, solo.addresses.front, PATIENT]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        with occupied(solo, client, PATIENT, [tensor(np.zeros(10, np.float32))]):
            process.stdin.write(b"go\n")
            process.stdin.flush()
            assert process.stdout.readline() == b"sent\n"
            wait_until(lambda: metric(front, "sits_preprocess_queued") > 0, what="they wait")
            process.send_signal(signal.SIGKILL)
    assert runs(solo, PATIENT) == before + 1


def test_cancels_close_to_completion_end_every_call_once(
    solo: Mesh, client: triton.InferenceServerClient
) -> None:
    """200 races between a cancel and the answer; the services live on and owe nothing."""
    rng, answers = random.Random(3), Answers()
    for _ in range(200):
        call = client.async_infer("brief", X, answers)
        threading.Timer(0.002 + 0.004 * rng.random(), call.cancel).start()
    ended = answers.take(200)
    assert set(ended) <= {"OK", "CANCELLED"}
    all_released(solo)
    with Load(solo.addresses.front, clients=2) as load:
        load.wait_for_more(20)
    assert load.all_right, load
