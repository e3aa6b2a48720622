"""Requests that wait share runs, and each gets what is its own of the result."""

from sits_channel import wire
from sits_core.testing import wait_until
from sits_preprocess.testing_engine import LONG_NS, World, names
from sits_protos.v1.common_pb2 import Error, Tensor
from sits_protos.v1.link_pb2 import (
    CloseReason,
    LinkMessage,
    RequestResult,
    ResultHeader,
)


def test_requests_that_wait_leave_together_and_each_gets_its_own_rows(world: World) -> None:
    link = world.link()
    world.submit("a")
    for name, rows in (("b", 1), ("c", 3), ("d", 2)):
        world.submit(name, rows)
    assert [names(b) for b in link.batches] == [["a"]]
    world.complete(link, link.batches[0])
    assert [names(b) for b in link.batches] == [["a"], ["b", "c", "d"]]
    assert link.batches[1].inputs[0].shape == [6, 4]
    world.complete(link, link.batches[1])
    assert {n: world.data(n) for n in "abcd"} == {
        "a": b"a...", "b": b"b...", "c": b"c..." * 3, "d": b"d..." * 2,
    }  # fmt: skip
    assert world.engine.open_requests() == 0


def test_one_then_nine_while_it_runs_become_runs_of_1_8_and_1(world: World) -> None:
    """BAT-01 (a): no delay, at most 8 rows, one instance that takes long."""
    link = world.link()
    world.submit("warm")
    world.complete(link, link.batches[0], run_ns=10_000_000_000)
    link.sent.clear()
    world.submit("0")
    for number in range(1, 10):
        world.submit(str(number))
    assert [b.batch.requests for b in link.batches] == [1, 8]
    world.complete(link, link.batches[0], run_ns=10_000_000_000)
    assert len(link.batches) == 2
    world.complete(link, link.batches[1], run_ns=10_000_000_000)
    assert [b.batch.requests for b in link.batches] == [1, 8, 1]
    assert link.batches[1].batch.close_reason == CloseReason.CLOSE_REASON_ROWS


def test_a_window_holds_requests_although_an_instance_is_idle() -> None:
    """BAT-01 (b): three within the window are one run, closed by the window."""
    world = World()
    world.config.dynamic_batching.max_queue_delay_microseconds = 50_000
    link = world.link()
    requests = [world.submit(name) for name in "abc"]
    wait_until(lambda: link.batches)
    assert names(link.batches[0]) == ["a", "b", "c"]
    assert link.batches[0].batch.close_reason == CloseReason.CLOSE_REASON_WINDOW
    waited = link.batches[0].batch.closed_unix_ns - requests[0].queued_ns
    assert waited >= 50_000_000
    world.engine.stop()


def test_different_shapes_and_parameters_never_share_a_run(world: World) -> None:
    link = world.link(window=9, instances=0)
    world.credit(link, 0)
    for number in range(6):
        world.submit(f"k{number}", parameters={"k": number % 2}, key=number % 2)
    world.credit(link, 9, 9)
    assert sorted(map(names, link.batches)) == [["k0", "k2", "k4"], ["k1", "k3", "k5"]]
    assert [b.requests[0].parameters["k"].int64_value for b in link.batches] == [0, 1]


def test_a_result_with_errors_reaches_only_the_requests_that_had_them(world: World) -> None:
    link = world.link(window=1)
    world.submit("first")
    for name in "abc":
        world.submit(name)
    world.complete(link, link.batches[0])
    batch = link.batches[1]
    x = batch.inputs[0]
    message = LinkMessage(
        result=ResultHeader(batch_id=batch.batch.batch_id, requests=3),
        results=[
            RequestResult(rows=1),
            RequestResult(rows=1, error=Error(code=13, message="bad row", reason="MODEL_FAILED")),
            RequestResult(rows=1),
        ],
        outputs=[
            Tensor(name="y", datatype="UINT8", shape=[2, 4], inline=x.inline[:4] + x.inline[8:])
        ],
    )
    world.tell(link, message)
    assert world.data("a") == b"a..."
    assert world.data("c") == b"c..."
    assert str(world.error("b")) == "bad row"


def test_a_model_whose_first_run_fails_is_served_all_the_same(world: World) -> None:
    link = world.link(window=1)
    world.submit("bad")
    header = ResultHeader(batch_id=link.batches[0].batch.batch_id, requests=1)  # no row ran
    header.times.input_started, header.times.executor_sent = 1, 6_000_001
    failed = RequestResult(rows=1, error=Error(code=13, message="bad", reason="MODEL_FAILED"))
    world.tell(link, LinkMessage(result=header, results=[failed]))
    assert str(world.error("bad")) == "bad"
    for number, name in enumerate("abc", start=1):
        world.submit(name)
        world.complete(link, link.batches[number], run_ns=6_000_000)
        assert world.data(name) == f"{name}...".encode()


def test_micro_batches_are_joined_by_position(world: World) -> None:
    link = world.link(window=1)
    world.submit("first")
    for name in "abc":
        world.submit(name)
    world.complete(link, link.batches[0])
    batch_id = link.batches[1].batch.batch_id
    for first, data in ((1, b"b...c..."), (0, b"a...")):
        count = len(data) // 4
        world.tell(link, LinkMessage(
            result=ResultHeader(batch_id=batch_id, first_request=first, requests=count),
            results=[RequestResult(rows=1)] * count,
            outputs=[Tensor(name="y", datatype="UINT8", shape=[count, 4], inline=data)],
        ))  # fmt: skip
    assert [world.data(n) for n in "abc"] == [b"a...", b"b...", b"c..."]


def test_an_answer_that_does_not_fit_its_batch_is_an_internal_error(world: World) -> None:
    link = world.link()
    world.submit("a")
    header = ResultHeader(batch_id=link.batches[0].batch.batch_id, requests=1)
    world.tell(link, LinkMessage(result=header, results=[]))
    assert "does not fit" in str(world.error("a"))


def test_an_answer_that_cannot_be_read_is_an_internal_error(world: World) -> None:
    link = world.link()
    world.submit("a")
    header = ResultHeader(batch_id=link.batches[0].batch.batch_id, requests=1)
    head = header.SerializeToString()
    world.engine.received(link, wire.join(wire.RESULT, head, b"\x6a\x7f"))
    assert "does not fit" in str(world.error("a"))


def test_tenants_share_batches_by_their_weights(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    for tenant in ("bronze", "gold"):
        for number in range(64):
            world.submit(f"{tenant} {number}", tenant=tenant)
    for _ in range(8):
        world.complete(link, link.batches[-1], run_ns=LONG_NS)
    served = [name.split()[0] for batch in link.batches[1:9] for name in names(batch)]
    assert len(served) == 64
    assert 40 <= served.count("gold") <= 56  # 48, to within a turn
