"""The executor as a service: every batch gets one answer, whatever is wrong with it or its link."""

import random
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sits_core.clock import now_ns
from sits_core.testing import wait_until
from sits_executor.testing import (
    TIMEOUT_S,
    FakeDispatcher,
    arrays_of,
    batch,
    builtin_config,
    write_model,
)
from sits_protos.v1.link_pb2 import BatchHeader, Cancel, LinkMessage, RequestHeader

X = np.array([[1, 2], [3, 4]], np.float32)


def test_unknown_models_and_versions_are_answered_not_found(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        unknown = dispatcher.run(batch(1, "n" * 20_000, [X]))
        version = dispatcher.run(batch(2, "m", [X], version="9"))
        shown = running.metrics()
    assert unknown.result.error.reason == version.result.error.reason == "NOT_FOUND"
    assert len(unknown.result.error.message.encode()) <= 1000
    assert "nnnn" not in shown, "names from outside are no labels"


def test_a_queue_that_is_full_refuses_at_once(repository: Path, linked: Any, gate: Any) -> None:
    write_model(repository, "m", gate.config)
    with linked(executor_queue_batches=2) as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(0, "m", [X]))
        gate.wait_for_run()
        for number in range(1, 8):
            dispatcher.send(batch(number, "m", [X]))
        refused = [dispatcher.result(n).result.error.reason for n in range(3, 8)]
        gate.open()
        served = [dispatcher.result(n).result.error.reason for n in range(3)]
    assert (served, refused) == ([""] * 3, ["QUEUE_FULL"] * 5)


def test_a_cancelled_batch_that_waits_is_answered_at_once_and_never_runs(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X, X]))
        gate.wait_for_run()
        dispatcher.send(batch(2, "m", [X, X]))
        dispatcher.cancel(2)
        cancelled = dispatcher.result(2)
        assert [r.error.reason for r in cancelled.results] == ["CANCELLED"] * 2
        assert 1 not in dispatcher.results, "it did not wait for the one that runs"
        gate.open()
        assert not dispatcher.result(1).result.HasField("error")
        wait_until(
            lambda: 'sits_executor_rows_total{model="m"} 4.0' in running.metrics(), TIMEOUT_S
        )


def test_a_batch_is_given_back_while_it_waits_and_not_once_it_runs(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        dispatcher.send(batch(2, "m", [X]))
        for number in (1, 2):
            ask = Cancel(batch_id=number, if_waiting=True)
            dispatcher.send(LinkMessage(cancel=ask))
        assert dispatcher.result(2).result.error.reason == "TAKEN_BACK"
        gate.open()
        assert not dispatcher.result(1).results[0].HasField("error")


def test_a_cancel_of_some_requests_spares_the_others(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        dispatcher.send(batch(2, "m", [X, X + 1, X + 2]))
        dispatcher.cancel(2, 0, 2)
        dispatcher.cancel(99)
        dispatcher.run(batch(3, "unknown", [X]))  # answered: the cancel before it was read
        gate.open()
        result = dispatcher.result(2)
    assert [r.error.reason for r in result.results] == ["CANCELLED", "", "CANCELLED"]
    assert arrays_of(result)["y"].tolist() == (X + 1).tolist()


def test_a_deadline_that_passes_in_the_queue_is_a_deadline_error(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        soon = RequestHeader(deadline_unix_ns=now_ns() + 50_000_000)
        far = RequestHeader(deadline_unix_ns=now_ns() + 10**16)
        dispatcher.send(batch(2, "m", [X, X], headers=[soon, far]))
        wait_until(lambda: now_ns() > soon.deadline_unix_ns, TIMEOUT_S)
        gate.open()
        result = dispatcher.result(2)
        shown = 'sits_executor_dropped_total{reason="DEADLINE_EXCEEDED_IN_QUEUE"} 1.0'
        wait_until(lambda: shown in running.metrics(), TIMEOUT_S)
    assert [r.error.reason for r in result.results] == ["DEADLINE_EXCEEDED_IN_QUEUE", ""]


def test_garbage_on_a_link_is_counted_and_batches_after_it_work(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "m", builtin_config("identity"))
    rng = random.Random(5)
    good = batch(5, "m", [X]).SerializeToString()
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        for _ in range(500):
            dispatcher.send_raw(rng.randbytes(rng.randrange(60)))
            flipped = bytearray(good)
            flipped[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
            dispatcher.send_raw(bytes(flipped))
        after = dispatcher.run(batch(1000, "m", [X]))
        shown = running.metrics()
    assert arrays_of(after)["y"].tolist() == X.tolist()
    assert "sits_executor_malformed_total 0.0" not in shown


def test_a_batch_whose_body_cannot_be_read_is_answered(repository: Path, linked: Any) -> None:
    head = LinkMessage(batch=BatchHeader(batch_id=4, model="m", requests=1)).SerializeToString()
    with linked() as (_, dispatcher):
        dispatcher.send_raw(head + b"\x4a\xff")
        assert dispatcher.result(4).result.error.reason == "INVALID_ARGUMENT"


def test_a_result_larger_than_a_message_is_an_error_and_the_link_stays(
    repository: Path, linked: Any
) -> None:
    wide = builtin_config("identity", dims=[-1])
    wide += '\noutput { name: "z" data_type: TYPE_FP32 dims: [-1] }'
    write_model(repository, "m", wide)
    x = np.zeros((1, 200_000), np.float32)
    with linked(max_message_bytes=1 << 20, executor_pool_bytes=0) as (_, dispatcher):
        dispatcher.wait_ready("m")
        assert dispatcher.run(batch(1, "m", [x])).result.error.reason == "RESULT_TOO_LARGE"
        assert arrays_of(dispatcher.run(batch(2, "m", [x[:, :2]])))["y"].shape == (1, 2)


def test_a_dispatcher_that_leaves_takes_its_waiting_batches_with_it(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, stays):
        stays.wait_ready("m")
        gate.close()
        with FakeDispatcher(running.address) as leaves:
            for number in range(4):
                leaves.send(batch(number, "m", [X]))
            wait_until(lambda: 'queue_batches{model="m"} 3.0' in running.metrics(), TIMEOUT_S)
        wait_until(lambda: "sits_executor_links 1.0" in running.metrics(), TIMEOUT_S)
        wait_until(lambda: 'queue_batches{model="m"} 0.0' in running.metrics(), TIMEOUT_S)
        gate.open()
        assert stays.run(batch(1, "m", [X])).result.execution == 2, "one was already running"


def test_many_links_open_and_close_without_leaving_threads(repository: Path, linked: Any) -> None:
    with linked() as (running, _):
        wait_until(lambda: running.health() == "SERVING", TIMEOUT_S)
        before = threading.active_count()
        for _ in range(20):
            with FakeDispatcher(running.address):
                pass
        wait_until(lambda: "sits_executor_links 1.0" in running.metrics(), TIMEOUT_S)
        # The server keeps the threads of its pool; each link's own reader ends.
        wait_until(lambda: _link_threads() <= 2, TIMEOUT_S)
        assert threading.active_count() <= before + 40


def test_the_executor_stops_in_time_with_fifty_links_open(repository: Path, executor: Any) -> None:
    with executor() as running:
        channel = grpc.insecure_channel(running.address)
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        link = channel.stream_stream("/sits.v1.Execute/Link", None, None)
        go = threading.Event()
        calls = [link(iter(lambda: go.wait() and b"", b"")) for _ in range(50)]
        assert all(LinkMessage.FromString(next(call)).HasField("hello") for call in calls)
        started_ns = now_ns()
        running.stop.set()
        running.thread.join(TIMEOUT_S)
        took_s = (now_ns() - started_ns) / 1e9
        for call in calls:
            with pytest.raises(grpc.RpcError):
                list(call)
        go.set()
        channel.close()
    assert took_s < running.settings.drain_grace_s + 10


def _link_threads() -> int:
    return sum(thread.name.startswith("link ") for thread in threading.enumerate())
