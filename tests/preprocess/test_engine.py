"""Every request the engine takes is answered exactly once, whatever happens around it."""

import gc
import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from prometheus_client import CollectorRegistry

from sits_channel import wire
from sits_channel.bounded import Pressure
from sits_channel.pool_reader import PoolReader
from sits_channel.shared_memory import SharedMemory
from sits_core.clock import Deadline, now_ns
from sits_core.errors import (
    Cancelled,
    DeadlineExceeded,
    NotFound,
    ResourceExhausted,
    SitsError,
    Unavailable,
)
from sits_core.testing import wait_until
from sits_preprocess.engine import Engine
from sits_preprocess.engine_metrics import EngineMetrics
from sits_preprocess.payloads import Payloads
from sits_preprocess.request import Answer, Answered, Request, TensorData
from sits_preprocess.settings import PreprocessSettings
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.common_pb2 import Error, Tensor
from sits_protos.v1.link_pb2 import (
    Catalog,
    CloseReason,
    Credit,
    Credits,
    Hello,
    LinkMessage,
    ModelEntry,
    ModelState,
    RequestResult,
    ResultHeader,
)
from sits_scheduling.quotas import Quota
from sits_scheduling.tenant_file import parse_tenants, standard_tenants
from sits_scheduling.tenants import Tenant, Tenants, Tier


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

    def __init__(
        self, max_batch: int = 8, tenants: Tenants | None = None, **settings: object
    ) -> None:
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
        self.engine.opened(link)
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
        self.engine.received(link, message.SerializeToString())

    def request(self, name: str, rows: int = 1, **values: object) -> Request:
        data = name.encode().ljust(4, b".") * rows
        x = TensorData("x", "UINT8", (rows, 4), data)
        return Request(
            lambda _result: None, id=name, model="m", version="1", inputs=(x,), rows=rows,
            payload_bytes=len(data), **values,
        )  # fmt: skip

    def submit(self, name: str, rows: int = 1, **values: object) -> Request:
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
        assert answer.error is None
        return bytes(answer.outputs[0].data)

    def error(self, name: str) -> object:
        (answer,) = self.answers[name]
        return answer.error


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.engine.stop()


def names(batch: LinkMessage) -> list[str]:
    return list(batch.batch.request_ids)


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


def test_a_deadline_is_answered_when_it_passes_and_the_executor_is_told(world: World) -> None:
    link = world.link()
    world.submit("slow", deadline=Deadline.after(0.05))
    wait_until(lambda: "slow" in world.answers)
    assert isinstance(world.error("slow"), DeadlineExceeded)
    assert link.cancels[0].cancel.batch_id == link.batches[0].batch.batch_id
    world.complete(link, link.batches[0])
    assert len(world.answers["slow"]) == 1


def test_a_queued_request_that_expires_is_never_sent(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    world.submit("queued", deadline=Deadline.after(0.02))
    wait_until(lambda: "queued" in world.answers)
    world.complete(link, link.batches[0])
    assert [names(b) for b in link.batches] == [["running"]]


def test_an_expired_request_is_refused_before_it_is_queued(world: World) -> None:
    world.link()
    world.submit("late", deadline=Deadline(now_ns() - 1))
    assert isinstance(world.error("late"), DeadlineExceeded)
    assert world.engine.open_requests() == 0


def test_a_cancelled_request_is_answered_once_and_never_sent(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    request = world.submit("queued")
    world.engine.cancel(request)
    world.engine.cancel(request)
    assert isinstance(world.error("queued"), Cancelled)
    world.complete(link, link.batches[0])
    assert len(link.batches) == 1


def test_a_lost_dispatchers_batches_are_sent_again_when_it_is_back(world: World) -> None:
    link = world.link()
    world.submit("a")
    world.engine.closed(link, "killed")
    world.submit("b")
    again = world.link(process="d2")
    assert [names(b) for b in again.batches] == [["a"]]
    world.complete(again, again.batches[0])
    world.complete(again, again.batches[1])
    assert world.data("a") == b"a..."
    assert world.data("b") == b"b..."


def test_a_lost_dispatchers_batches_go_to_another_one_at_once(world: World) -> None:
    first, second = world.link(), world.link(process="d2", peer="dispatcher:2")
    world.submit("a")
    holder, other = (first, second) if first.batches else (second, first)
    world.engine.closed(holder, "killed")
    assert [names(b) for b in other.batches] == [["a"]]


def test_a_batch_is_not_sent_for_ever(world: World) -> None:
    link = world.link()
    world.submit("a")
    for life in range(3):
        world.engine.closed(link, "killed")
        link = world.link(process=f"d{life + 2}")
    assert isinstance(world.error("a"), Unavailable)
    assert link.batches == []


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


def test_a_full_queue_refuses_at_once() -> None:
    world = World(preprocess_max_queue=2)
    world.link(window=1)
    for name in ("running", "q1", "q2"):
        world.submit(name)
    world.submit("q3")
    assert "Exceeds maximum queue size" in str(world.error("q3"))
    world.engine.stop()


def test_after_a_refusal_others_are_foreseen_until_there_is_room_again() -> None:
    world = World(preprocess_max_queue=2)
    link = world.link(window=1)
    now = now_ns()
    assert not world.engine.refusing(now)
    for name in ("running", "q1", "q2", "q3"):
        world.submit(name)
    assert world.engine.refusing(now)
    assert not world.engine.refusing(now + 200_000_000)
    unread = Request(lambda _result: None, model="m", version="1")
    error = world.engine.foresee(unread, now)
    assert error is not None
    assert error.reason == "QUEUE_FULL"
    world.complete(link, link.batches[0])
    assert world.engine.foresee(unread, now) is None
    unknown = Request(lambda _result: None, model="nobody", version="1")
    assert world.engine.foresee(unknown, now) is None
    world.engine.stop()


def test_a_look_says_how_much_time_others_need() -> None:
    world = World(max_batch=1)
    link = world.link(window=1)
    for number in range(20):
        world.submit(f"r{number}")
    for _ in range(5):  # what is run for 50 ms each time is learnt
        world.complete(link, link.batches[-1], run_ns=50_000_000)
    now = now_ns()
    unread = world.request("", deadline=Deadline(now + 3_600_000_000_000))
    look = world.engine.look(unread, now)
    assert look.error is None
    assert look.needs.row_ns > 10_000_000
    for less_ns in (-2_000_000, 2_000_000):
        deadline = Deadline(now + int(look.needs.time_ns) + less_ns)
        error = world.engine.foresee(world.request("", deadline=deadline), now)
        assert (error is None) == (less_ns > 0)
    assert world.engine.look(world.request("", deadline=Deadline(now + 1)), now).error is not None
    world.engine.stop()


def test_a_look_at_a_tenant_with_a_quota_is_for_one_and_takes_nothing() -> None:
    slow = Tenant("slow", Tier.GOLD, Quota(rate_per_s=0.001, burst=2.0))
    world = World(tenants=Tenants([slow]))
    world.link(window=1)
    now = now_ns()
    world.submit("first", tenant="slow")
    for _ in range(3):
        look = world.engine.look(world.request("", tenant="slow"), now)
        assert look.each
        assert look.error is None
    world.submit("second", tenant="slow")
    assert world.engine.look(world.request("", tenant="slow"), now).error is not None
    assert not world.engine.look(world.request("", tenant="other"), now).each
    world.engine.stop()


def test_what_was_turned_away_counts_as_refused() -> None:
    world = World()
    now = now_ns()
    assert not world.engine.refusing(now)
    world.engine.turned_away(Unavailable("", reason="DEADLINE_UNREACHABLE"), 3, now)
    assert world.engine.refusing(now)
    registry = world.registry.get_sample_value
    labels = {"reason": "DEADLINE_UNREACHABLE"}
    assert registry("sits_preprocess_refused_total", labels) == 3
    world.engine.stop()


def test_a_tenant_that_fills_the_queue_is_told_to_slow_down() -> None:
    world = World(preprocess_max_queue=64, preprocess_producer_rate="adaptive_quota")
    world.link(window=1)
    for number in range(200):
        world.submit(f"b{number}", tenant="bronze")
    told = [answers[0].error for answers in world.answers.values()]
    assert told
    assert {error.reason for error in told if error} <= {"PRODUCER_RATE_EXCEEDED", "QUEUE_FULL"}
    assert any(e.reason == "PRODUCER_RATE_EXCEEDED" and e.retry_after_ms for e in told if e)
    world.engine.stop()


def test_work_that_nobody_serves_is_refused_after_a_while(world: World) -> None:
    link = world.link()
    world.credit(link, 0)
    world.submit("a")
    wait_until(lambda: "a" in world.answers)
    assert isinstance(world.error("a"), Unavailable)


def test_draining_refuses_new_requests_and_finishes_accepted_ones(world: World) -> None:
    link = world.link()
    world.submit("a")
    world.engine.drain()
    world.submit("b")
    assert "shutting down" in str(world.error("b"))
    world.complete(link, link.batches[0])
    assert world.data("a") == b"a..."


def test_a_restarted_dispatcher_that_knows_no_executor_yet_hides_no_model(world: World) -> None:
    link = world.link()
    world.engine.closed(link, "killed")
    reborn = FakeLink()
    world.engine.opened(reborn)
    world.tell(reborn, LinkMessage(hello=Hello(id="d2")))
    world.tell(reborn, LinkMessage(catalog=Catalog()))
    assert world.engine.catalog.find("m", "").version == "1"
    wait_until(lambda: not world.engine.catalog.models())
    with pytest.raises(NotFound):
        world.engine.catalog.find("m", "")


def test_a_model_that_failed_before_it_had_a_version_is_known_as_not_ready(world: World) -> None:
    link = world.link()
    failed = ModelEntry(name="broken", state=ModelState.MODEL_STATE_UNAVAILABLE, reason="no file")
    world.tell(link, LinkMessage(catalog=Catalog(models=[world.entry(), failed])))
    with pytest.raises(Unavailable, match="no file"):
        world.engine.catalog.find("broken", "")


def test_an_unloaded_model_is_unknown_at_once(world: World) -> None:
    link = world.link()
    world.tell(link, LinkMessage(catalog=Catalog()))
    with pytest.raises(NotFound):
        world.engine.catalog.find("m", "")


def test_random_cancels_deadlines_and_losses_leave_no_request_unanswered(world: World) -> None:
    link = world.link(window=4, instances=2)
    requests = [
        world.submit(f"r{n}", deadline=Deadline.after(0.001 * (n % 50 + 1)) if n % 3 else None)
        for n in range(200)
    ]
    for number, request in enumerate(requests):
        if number % 5 == 0:
            world.engine.cancel(request)
        if number == 100:
            world.engine.closed(link, "killed")
            link = world.link(window=4, instances=2, process="d2")
        for batch in link.batches[-2:]:
            world.complete(link, batch)

    def all_answered() -> bool:
        for batch in list(link.batches):
            world.complete(link, batch)
        return len(world.answers) == 200

    wait_until(all_answered)
    assert {len(found) for found in world.answers.values()} == {1}
    assert world.engine.open_requests() == 0


def test_answered_requests_are_freed_without_the_garbage_collector(world: World) -> None:
    """Else large payloads would stay until it comes by."""
    link = world.link()
    gc.collect()
    gc.disable()
    try:
        requests = [weakref.ref(world.submit(f"r{n}").reply) for n in range(4)]
        while world.engine.open_requests():
            world.complete(link, link.batches[-1])
        world.engine.cancel(world.request("never submitted"))
        assert [ref() for ref in requests] == [None] * 4
    finally:
        gc.enable()


TENANTS = (
    '{"tenants": {"few": {"tier": "bronze", "max_waiting": 2}, '
    '"slow": {"tier": "gold", "rate_per_s": 0.001, "burst": 1}}}'
)
LONG_NS = 10_000_000_000


class Busy:
    """One instance that runs a batch of 8 rows for 10 s, which is known of it."""

    def __init__(self, **settings: object) -> None:
        self.world = World(tenants=parse_tenants(TENANTS), **settings)
        self.link = self.world.link(window=1)
        self.world.submit("warm", rows=8)
        self.finish()
        self.world.submit("running", rows=8)

    def finish(self) -> None:
        self.world.complete(self.link, self.link.batches[-1], run_ns=LONG_NS)

    def error(self, name: str, **values: object) -> SitsError | None:
        """What a request is refused with; None when it is taken."""
        self.world.submit(name, **values)
        (answer,) = self.world.answers.get(name, [Answer()])
        return answer.error


@pytest.fixture
def busy() -> Iterator[Busy]:
    made = Busy()
    yield made
    made.world.engine.stop()


def test_a_deadline_that_cannot_be_met_is_refused_at_once_and_says_when_to_retry(
    busy: Busy,
) -> None:
    error = busy.error("late", deadline=Deadline.after(15))
    assert isinstance(error, Unavailable)
    assert error.reason == "DEADLINE_UNREACHABLE"
    assert 4_000 < error.retry_after_ms < 10_000
    assert busy.error("patient", deadline=Deadline.after(60)) is None
    assert busy.error("no deadline") is None


def test_quotas_of_tenants_hold_and_say_when_to_retry(busy: Busy) -> None:
    assert [busy.error(f"f{n}", tenant="few") for n in range(2)] == [None, None]
    error = busy.error("f2", tenant="few")
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after_ms) == ("QUOTA_WAITING_EXCEEDED", 50)
    assert busy.error("s0", tenant="slow") is None
    error = busy.error("s1", tenant="slow")
    assert isinstance(error, ResourceExhausted)
    assert (error.reason, error.retry_after_ms) == ("QUOTA_RATE_EXCEEDED", 1_000_000)
    assert busy.error("g", tenant="gold") is None


def test_tiers_are_refused_while_a_dispatcher_says_so(busy: Busy) -> None:
    credit = Credit(model="m", version="1", window=1, instances=1)
    shed = Credits(models=[credit], shed_tiers=["bronze", "a tier of tomorrow"])
    busy.world.tell(busy.link, LinkMessage(credits=shed))
    error = busy.error("b", tenant="bronze")
    assert isinstance(error, Unavailable)
    assert (error.reason, error.retry_after_ms) == ("SHED_UNDER_OVERLOAD", 1_000)
    assert busy.error("g", tenant="gold") is None
    busy.world.credit(busy.link, 1)
    assert busy.error("b2", tenant="bronze") is None


def test_a_dispatcher_that_is_lost_asks_for_nothing_any_more(busy: Busy) -> None:
    busy.world.tell(busy.link, LinkMessage(credits=Credits(shed_tiers=["bronze"], degrade=True)))
    assert busy.error("b", tenant="bronze") is not None
    busy.world.engine.closed(busy.link, "killed")
    assert busy.error("b2", tenant="bronze") is None


def test_what_is_under_way_counts_until_it_is_over_however_it_ends(busy: Busy) -> None:
    def under_way_ns() -> float:
        (gate,) = [b.gate for b in busy.world.engine._queues._batchers.values()]
        return gate.under_way_ns

    assert under_way_ns() == pytest.approx(LONG_NS)
    busy.finish()
    assert under_way_ns() == 0
    busy.world.submit("lost")
    assert under_way_ns() > 0
    busy.world.engine.closed(busy.link, "killed")
    assert under_way_ns() == 0


def test_what_could_start_at_once_but_runs_too_long_is_tried_now_and_then(busy: Busy) -> None:
    """Else an estimate that is wrong would never be corrected."""
    busy.finish()
    assert busy.error("tried", rows=8, deadline=Deadline.after(1)) is None
    busy.finish()
    error = busy.error("again", rows=8, deadline=Deadline.after(1))
    assert isinstance(error, DeadlineExceeded)
    assert error.reason == "DEADLINE_UNREACHABLE"


def test_without_admission_everything_queues() -> None:
    busy = Busy(preprocess_admission=False)
    assert busy.error("late", deadline=Deadline.after(15)) is None
    assert [busy.error(f"f{n}", tenant="few") for n in range(3)] == [None] * 3
    busy.world.engine.stop()


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


def test_while_degraded_requests_without_a_version_get_the_cheaper_one() -> None:
    world = World(preprocess_fallback="m=1,gone=7")
    link = world.link()
    newer = world.entry()
    newer.version = "2"
    world.tell(link, LinkMessage(catalog=Catalog(models=[world.entry(), newer])))

    def found(version: str = "") -> str:
        return world.engine.catalog.find("m", version).version

    assert found() == "2"
    world.tell(link, LinkMessage(credits=Credits(degrade=True)))
    assert (found(), found("2")) == ("1", "2")
    assert world.engine.degraded
    world.tell(link, LinkMessage(catalog=Catalog(models=[newer])))
    assert found() == "2", "the cheaper one is not there"
    world.tell(link, LinkMessage(catalog=Catalog(models=[world.entry(), newer])))
    world.tell(link, LinkMessage(credits=Credits()))
    assert found() == "2"
    assert not world.engine.degraded
    world.engine.stop()


def test_dispatchers_may_ask_for_smaller_batches(world: World) -> None:
    link = world.link(window=1)
    world.submit("running")
    credit = Credit(model="m", version="1", window=1, instances=1, micro_batch_rows=3)
    world.tell(link, LinkMessage(credits=Credits(models=[credit])))
    for number in range(6):
        world.submit(str(number))
    world.complete(link, link.batches[0])
    assert link.batches[1].batch.rows == 3
