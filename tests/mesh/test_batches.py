"""What is batched and what is kept apart, seen by what one instance ran (BAT-01, BAT-03)."""

import time
from collections import Counter
from collections.abc import Iterator
from queue import Queue
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton

from sits_cli import spans
from sits_cli.client import Place
from sits_cli.mesh import Mesh
from sits_cli.testing_mesh import idle, metric, tensor
from sits_core.testing import wait_until
from sits_core.waterfall import Span

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
Client = triton.InferenceServerClient


@pytest.fixture
def client(solo: Mesh) -> Iterator[Client]:
    wait_until(lambda: idle(solo), TIMEOUT_S, "nothing in flight")
    with Client(solo.addresses.front) as made:
        yield made


def rows(count: int) -> list[triton.InferInput]:
    return [tensor(np.ones((count, 4), np.float32))]


def sizes(client: Client, model: str) -> Counter[int]:
    """How many runs there were of each number of rows."""
    (found,) = client.get_inference_statistics(model).model_stats
    return Counter({b.batch_size: b.compute_infer.count for b in found.batch_stats})


class Sent:
    """Requests that are under way together."""

    def __init__(self, client: Client, model: str) -> None:
        self._client, self._model = client, model
        self._answers: Queue[Any] = Queue()
        self._count = 0

    def send(self, inputs: list[triton.InferInput], **options: Any) -> None:
        self._count += 1
        self._client.async_infer(
            self._model, inputs, lambda result, error: self._answers.put(error or result), **options
        )

    def answers(self) -> list[triton.InferResult]:
        found = [self._answers.get(timeout=TIMEOUT_S) for _ in range(self._count)]
        assert all(isinstance(answer, triton.InferResult) for answer in found), found
        return found


def test_what_waits_for_a_busy_instance_leaves_as_one_full_batch(
    solo: Mesh, client: Client
) -> None:
    """BAT-01 (a): no delay, 1 and then 9 while it runs: runs of 1, 8, 1."""
    before, sent = sizes(client, "eight"), Sent(client, "eight")
    sent.send(rows(1))
    wait_until(lambda: not idle(solo), what="it runs")
    for _ in range(9):
        sent.send(rows(1))
    sent.answers()
    assert sizes(client, "eight") - before == Counter({1: 2, 8: 1})


def test_a_delay_holds_requests_although_the_instance_is_idle(client: Client) -> None:
    """BAT-01 (b): 3 within the window of 300 ms: one run, not before the window is over."""
    before, sent = sizes(client, "window"), Sent(client, "window")
    started_s = time.monotonic()
    for _ in range(3):
        sent.send(rows(1))
    sent.answers()
    assert time.monotonic() - started_s >= 0.3
    assert sizes(client, "window") - before == Counter({3: 1})


def test_a_long_delay_gathers_all_that_comes(client: Client) -> None:
    """BAT-01 (c): 20, 40 and 80 rows within 2 s, at most 400: one run."""
    before, sent = sizes(client, "two_s"), Sent(client, "two_s")
    for count in (20, 40, 80):
        sent.send(rows(count))
    answers = sent.answers()
    assert sorted(len(answer.as_numpy("Y")) for answer in answers) == [20, 40, 80]
    assert sizes(client, "two_s") - before == Counter({140: 1})


def test_a_full_batch_does_not_wait_for_the_delay(client: Client) -> None:
    """BAT-01 (d): a delay of 10 s, and all rows are there: answered long before."""
    before, sent = sizes(client, "ten_s"), Sent(client, "ten_s")
    for _ in range(8):
        sent.send(rows(1), client_timeout=8)
    sent.answers()
    assert sizes(client, "ten_s") - before == Counter({8: 1})


def everywhere(mesh: Mesh) -> list[Place]:
    book = mesh.addresses
    return spans.control_places(
        Place("dispatcher", book.dispatcher), Place("topology", book.topology)
    )


def own_trace(number: int) -> bytes:
    return bytes([0xB3]) * 15 + bytes([number])


def test_what_shares_a_window_keeps_its_own_parameters_outputs_tenant_and_trace(
    solo: Mesh, client: Client
) -> None:
    """BAT-03: 8 requests that differ in all of it, within one delay."""
    outputs = {1: ["A"], 2: ["B"], 3: ["A", "B"], 0: None}
    inputs = [tensor(np.ones((1, 2), np.float32), name=name) for name in ("P", "Q")]
    sent = Sent(client, "echo")
    for k in range(1, 9):
        wanted = outputs[k % 4]
        sent.send(
            inputs,
            outputs=wanted and [triton.InferRequestedOutput(name) for name in wanted],
            request_id=str(k),
            parameters={"k": k},
            priority=k % 3,
            timeout=10_000_000 + k,
            headers={
                "sits-tenant": f"tenant-{k}",
                "traceparent": f"00-{own_trace(k).hex()}-{k:016x}-01",
            },
        )
    answers = {answer.get_response().id: answer for answer in sent.answers()}
    for k in range(1, 9):
        response = answers[str(k)].get_response()
        names = [output.name for output in response.outputs]
        assert names == (outputs[k % 4] or ["A", "B"])
        for name in names:
            assert answers[str(k)].as_numpy(name).tolist() == [[str(k).encode()]]
        assert counted(solo, f"tenant-{k}") == 1
        check_trace(spans.fetch(everywhere(solo), own_trace(k)).spans, k)


def counted(mesh: Mesh, tenant: str) -> float:
    at = mesh.addresses.front_metrics
    return metric(at, "sits_requests_total", model="echo", tenant=tenant, outcome="OK")


def check_trace(found: list[Span], k: int) -> None:
    """One request of one tenant, below its caller's span, and one run."""
    names = Counter(span.name for span in found)
    assert names["preprocess.request"] == names["executor.infer"] == 1
    (root,) = (span for span in found if span.name == "preprocess.request")
    assert root.parent_id == k.to_bytes(8, "big")
    assert root.attributes["tenant"] == f"tenant-{k}"
