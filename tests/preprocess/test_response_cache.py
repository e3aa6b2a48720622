"""Who gets an answer again, whose answers are kept apart, and when one is not given any more."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import tritonclient.grpc as triton
from prometheus_client import CollectorRegistry

from sits_core.clock import Deadline, now_ns
from sits_core.errors import Cancelled, Unavailable
from sits_core.testing import FakeClock, MemoryAnswers, wait_until
from sits_preprocess.cache.engine import CachedEngine
from sits_preprocess.cache.memory import ENTRY_BYTES, TENSOR_BYTES, Kept, Memory
from sits_preprocess.cache.metrics import CacheMetrics
from sits_preprocess.cache.rules import Rules
from sits_preprocess.cache.shared import MAX_ANSWER_BYTES, Room, Shared
from sits_preprocess.catalog import Model
from sits_preprocess.fake_engine import FakeEngine, failing, model
from sits_preprocess.oip.signature import Signatures
from sits_preprocess.request import NO_PARAMETERS, Answer, Request, TensorData
from sits_preprocess.statistics import Statistics

LOOKUPS = "sits_response_cache_lookups_total"
INPUT, OUTPUT = [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])]


def cached(name: str = "m", content: bytes = b"first", **parameters: str) -> Model:
    return model(name, INPUT, OUTPUT, cached=content, parameters=parameters)


class Cache:
    """A cache over a fake engine, asked without a front port."""

    def __init__(
        self, *models: Model, store: MemoryAnswers | None = None, max_bytes: int = 1 << 20,
        redis_bytes: int = 1 << 20, wait_s: float = 30.0, clock: Callable[[], int] = now_ns,
    ) -> None:  # fmt: skip
        self.engine = FakeEngine(*(models or (cached(),)))
        self.registry, self.statistics = CollectorRegistry(), Statistics()
        memory = Memory(max_bytes, clock)
        metrics = CacheMetrics(self.registry, memory)
        shared = Shared(store, redis_bytes, wait_s, metrics) if store is not None else None
        self.memory, self.shared, self.signatures = memory, shared, Signatures()
        self.cache = CachedEngine(
            self.engine, Rules(60.0, clock), memory, shared, self.statistics, metrics, clock
        )
        self.answers: dict[Request, Answer] = {}
        self.cache.deliver_to(self.take)
        self.cache.start()

    def take(self, answered) -> None:
        for request, answer in answered:
            assert request not in self.answers, "answered twice"
            self.answers[request] = answer

    def ask(self, data: bytes = b"abcd", name: str = "m", **fields) -> Answer:
        return self.wait(self.send(data, name, **fields))

    def send(self, data: bytes = b"abcd", name: str = "m", **fields) -> Request:
        request = self.request(data, name, **fields)
        self.cache.submit([request])
        return request

    def request(self, data: bytes = b"abcd", name: str = "m", **fields) -> Request:
        known = self.engine.catalog.find(name, "1")
        made = Request(
            lambda _: None, now_ns(), tenant="gold", model=name, version="1", rows=1,
            signature=self.signatures.of(known),
            inputs=(TensorData("INPUT0", "FP32", (len(data) // 4,), data),),
        )  # fmt: skip
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    def wait(self, request: Request) -> Answer:
        wait_until(lambda: request in self.answers, what="an answer")
        return self.answers[request]

    @property
    def runs(self) -> int:
        return len(self.engine.taken)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def unkept(self, reason: str) -> float:
        return self.counted("sits_response_cache_unkept_total", reason=reason)


@pytest.fixture
def open_cache() -> Iterator[Callable[..., Cache]]:
    opened: list[Cache] = []

    def start(*models: Model, **options) -> Cache:
        opened.append(Cache(*models, **options))
        return opened[-1]

    yield start
    for cache in opened:
        cache.cache.stop()


def hit(answer: Answer) -> str:
    return answer.run.cached


def test_the_same_request_is_answered_again_without_a_run(open_cache) -> None:
    cache = open_cache()
    first, second = cache.ask(), cache.ask()
    assert (hit(first), hit(second), cache.runs) == ("", "memory", 1)
    assert second.outputs == first.outputs


def test_a_model_that_does_not_ask_for_it_always_runs(open_cache) -> None:
    cache = open_cache(model("m", INPUT, OUTPUT))
    assert [hit(cache.ask()) for _ in range(2)] == ["", ""]
    assert cache.runs == 2


def test_a_model_whose_content_is_unknown_always_runs(open_cache) -> None:
    cache = open_cache(replace(cached(), content=b""))
    assert [hit(cache.ask()) for _ in range(2)] == ["", ""]


@pytest.mark.parametrize(
    "other",
    [
        {"inputs": (TensorData("INPUT0", "FP32", (1,), b"abce"),)},
        {"inputs": (TensorData("INPUT0", "FP32", (1, 1), b"abcd"),)},
        {"inputs": (TensorData("INPUT0", "INT32", (1,), b"abcd"),)},
        {"inputs": (TensorData("INPUT1", "FP32", (1,), b"abcd"),)},
        {"parameters": {"seed": 1}},
        {"parameters": {"seed": True}},
        {"parameters": {"seed": "1"}},
        {"outputs": (0,)},
        {"tenant": "bronze"},
    ],
    ids=str,
)
def test_what_differs_in_anything_that_matters_is_another_request(open_cache, other) -> None:
    cache = open_cache()
    cache.ask()
    assert hit(cache.ask(**other)) == ""
    assert hit(cache.ask(**other)) == "memory"


def test_parameters_that_differ_in_type_only_differ(open_cache) -> None:
    cache = open_cache()
    values = (1, True, "1", 1.0)
    assert [hit(cache.ask(parameters={"seed": value})) for value in values] == [""] * 4


def test_neither_their_order_nor_id_nor_priority_nor_deadline_matters(open_cache) -> None:
    cache = open_cache()
    cache.ask(parameters={"a": 1, "b": 2}, id="one", priority=1)
    assert hit(cache.ask(parameters={"b": 2, "a": 1}, id="two", priority=3)) == "memory"


def test_data_cannot_pass_for_something_else(open_cache) -> None:
    """Lengths are part of it: what ends in one tensor does not begin in the next."""
    cache = open_cache()
    inputs = [
        tuple(TensorData("INPUT0", "FP32", (1,), part) for part in parts)
        for parts in ((b"abcd", b"efgh"), (b"abcdefgh", b""), (b"", b"abcdefgh"))
    ]
    assert [hit(cache.ask(inputs=each)) for each in inputs] == ["", "", ""]


def test_tenants_share_answers_only_where_the_model_says_so(open_cache) -> None:
    cache = open_cache(cached("own"), cached("all", response_cache_shared="true"))
    for name in ("own", "all"):
        cache.ask(name=name, tenant="gold")
    assert hit(cache.ask(name="own", tenant="bronze")) == ""
    assert hit(cache.ask(name="all", tenant="bronze")) == "memory"


def test_a_reloaded_model_never_answers_from_what_it_was(open_cache) -> None:
    cache = open_cache()
    cache.ask()
    cache.engine.catalog.known = [cached(content=b"second")]
    assert hit(cache.ask()) == ""
    cache.engine.catalog.known = [cached(content=b"first")]
    assert hit(cache.ask()) == "memory"  # the same content as before, so the same answer


def test_the_answer_of_another_content_than_asked_for_is_not_kept(open_cache) -> None:
    """It was reloaded between the question and the run."""
    cache = open_cache()
    cache.engine.hold = True
    asked = cache.send()
    cache.engine.catalog.known = [cached(content=b"second")]
    cache.engine.finish(asked)
    assert (len(cache.memory), cache.unkept("reloaded")) == (0, 1)


def test_who_had_it_loaded_gets_its_new_answers_at_once(open_cache) -> None:
    """Although the announcement may still be on its way."""
    clock = FakeClock()
    cache = open_cache(clock=clock)
    cache.ask()
    cache.cache.pause("m")
    assert hit(cache.ask()) == ""
    clock.advance(1)
    assert hit(cache.ask()) == "memory"


def test_failures_are_not_kept(open_cache) -> None:
    cache = open_cache()
    cache.engine.runs["m"] = failing()
    assert cache.ask().error is not None
    del cache.engine.runs["m"]
    assert (hit(cache.ask()), cache.runs) == ("", 2)


def test_an_answer_is_over_when_its_time_is(open_cache) -> None:
    clock = FakeClock()
    cache = open_cache(cached("m"), cached("brief", response_cache_ttl_s="5"), clock=clock)
    for name in ("m", "brief"):
        cache.ask(name=name)
    clock.advance(5)
    assert (hit(cache.ask(name="brief")), hit(cache.ask())) == ("", "memory")
    clock.advance(60)
    assert hit(cache.ask()) == ""


def test_its_bytes_are_bounded_and_the_longest_unused_goes_first(open_cache) -> None:
    one = ENTRY_BYTES + TENSOR_BYTES + 400
    cache = open_cache(max_bytes=3 * one)
    data = [bytes([n]) * 400 for n in range(4)]
    for each in data[:3]:
        cache.ask(each)
    cache.ask(data[0])
    cache.ask(data[3])
    assert cache.memory.size_bytes <= 3 * one
    assert [hit(cache.ask(data[n])) for n in (0, 3, 2, 1)] == ["memory", "memory", "memory", ""]


def test_what_is_larger_than_all_its_room_is_not_kept_and_nothing_goes_for_it(open_cache) -> None:
    cache = open_cache(max_bytes=4000)
    cache.ask()
    cache.ask(bytes(8000))
    assert (hit(cache.ask()), cache.unkept("too_large")) == ("memory", 1)


def test_kept_answers_hold_nothing_of_their_batch(open_cache) -> None:
    cache = open_cache()
    batch = memoryview(bytes(1 << 20))
    cache.engine.runs["m"] = lambda _: [TensorData("OUTPUT0", "FP32", (1,), batch[:4])]
    cache.ask()
    assert cache.ask().outputs[0].data == bytes(4)
    assert isinstance(cache.ask().outputs[0].data, bytes)


def test_what_is_asked_together_is_answered_or_goes_on_each_for_itself(open_cache) -> None:
    cache = open_cache(cached(), model("other", INPUT, OUTPUT))
    cache.ask(b"hit!")
    requests = [cache.request(b"hit!"), cache.request(b"miss"), cache.request(name="other")]
    cache.cache.submit(requests)
    assert [hit(cache.wait(request)) for request in requests] == ["memory", "", ""]


def test_nothing_is_remembered_of_requests_that_are_answered(open_cache) -> None:
    cache = open_cache()
    cache.ask()
    cache.engine.refuse = Unavailable("full")
    cache.ask(b"more")
    request = cache.send(b"last")
    cache.cache.cancel(request)
    assert not cache.cache._missed


def test_overload_refuses_unread_only_what_cannot_be_kept(open_cache) -> None:
    """A request has to be read to be found."""
    cache = open_cache(cached(), model("other", INPUT, OUTPUT))
    cache.ask()
    cache.engine.foreseen = Unavailable("too much")
    assert cache.cache.refusing(0)
    assert cache.cache.foresee(cache.request(), 0) is None
    assert cache.cache.look(cache.request(), 0).error is None
    assert cache.cache.foresee(cache.request(name="other"), 0) is cache.engine.foreseen


def test_who_asks_why_hears_where_the_answer_was(open_cache) -> None:
    cache = open_cache()
    cache.ask()
    answer = cache.ask(explain=True)
    assert answer.run.explanation.startswith("cache=memory;age_ms=")


# at the same time


def test_of_equal_requests_under_way_one_is_computed(open_cache) -> None:
    cache = open_cache()
    cache.engine.hold = True
    requests = [cache.send(id=str(number), explain=number == 1) for number in range(3)]
    other = cache.send(b"else")
    assert cache.runs == 2
    cache.engine.finish_all()
    found = [cache.wait(request) for request in requests]
    assert [hit(answer) for answer in found] == ["", "joined", "joined"]
    assert len({answer.outputs for answer in found}) == 1
    assert found[1].run.explanation == "cache=joined"
    assert hit(cache.wait(other)) == ""
    assert not cache.cache._missed


def test_when_it_fails_each_of_the_others_is_computed(open_cache) -> None:
    cache = open_cache()
    cache.engine.hold, cache.engine.runs["m"] = True, failing()
    first, *others = [cache.send() for _ in range(4)]
    cache.engine.finish(first)
    assert cache.wait(first).error is not None
    assert cache.runs == 4
    del cache.engine.runs["m"]
    cache.engine.finish_all()
    assert [cache.wait(request).error for request in others] == [None] * 3


def test_when_its_client_gives_up_one_of_the_others_takes_its_place(open_cache) -> None:
    cache = open_cache()
    cache.engine.hold = True
    first, second, *others = [cache.send() for _ in range(5)]
    for given_up in (first, second):
        cache.cache.cancel(given_up)
        assert isinstance(cache.wait(given_up).error, Cancelled)
    assert cache.runs == 3
    cache.engine.finish_all()
    assert [hit(cache.wait(request)) for request in others] == ["", "joined", "joined"]
    assert cache.counted(LOOKUPS, model="m", result="joined") == 4
    assert not cache.cache._missed


def test_who_waits_for_another_can_be_cancelled_alone(open_cache) -> None:
    cache = open_cache()
    cache.engine.hold = True
    first, second, third = [cache.send() for _ in range(3)]
    cache.cache.cancel(second)
    assert isinstance(cache.wait(second).error, Cancelled)
    cache.engine.finish_all()
    assert [cache.wait(request).error for request in (first, third)] == [None, None]
    assert cache.runs == 1


@pytest.mark.parametrize(
    ("first", "second", "runs"),
    [
        ({}, {"deadline": Deadline(9)}, 2),
        ({"deadline": Deadline(9)}, {"deadline": Deadline(8)}, 2),
        ({"deadline": Deadline(9)}, {"deadline": Deadline(9)}, 1),
        ({"deadline": Deadline(9)}, {}, 1),
        ({"priority": 3}, {"priority": 2}, 2),
        ({"priority": 3}, {"priority": 3}, 1),
        ({}, {"priority": 1}, 2),
        ({"tenant": "bronze"}, {"tenant": "gold"}, 2),
    ],
    ids=str,
)
def test_nobody_waits_for_one_that_may_end_later_or_is_less_urgent(
    open_cache, first, second, runs: int
) -> None:
    cache = open_cache(cached(response_cache_shared="true"))
    cache.engine.hold = True
    requests = [cache.send(**first), cache.send(**second)]
    assert cache.runs == runs
    cache.engine.finish_all()
    assert [cache.wait(request).error for request in requests] == [None, None]


def test_requests_that_came_together_share_a_run_too(open_cache) -> None:
    cache = open_cache()
    requests = [cache.request() for _ in range(3)]
    cache.cache.submit(requests)
    assert {cache.wait(request).error for request in requests} == {None}
    assert cache.runs == 1


# while governance degrades


def test_answers_that_are_over_are_given_while_governance_degrades_and_say_so(open_cache) -> None:
    clock = FakeClock()
    cache = open_cache(cached(response_cache_stale_s="30"), clock=clock)
    cache.ask(explain=True)
    clock.advance(60 + 10)
    cache.engine.degraded = True
    answer = cache.ask(explain=True)
    assert (hit(answer), dict(answer.parameters)) == ("stale", {"sits_stale_ms": 10_000})
    assert answer.run.explanation == "cache=stale;age_ms=70000"
    assert cache.counted("sits_response_cache_lookups_total", model="m", result="stale") == 1


def test_they_are_not_given_in_good_times_nor_for_ever(open_cache) -> None:
    clock = FakeClock()
    cache = open_cache(cached(response_cache_stale_s="30"), clock=clock)
    cache.ask()
    clock.advance(60 + 10)
    cache.engine.runs["m"] = failing()  # so that nothing new is kept
    assert (hit(cache.ask()), cache.runs) == ("", 2)
    cache.engine.degraded = True
    clock.advance(20)
    assert (hit(cache.ask()), cache.runs) == ("", 3)


def test_fresh_ones_say_nothing_of_it(open_cache) -> None:
    cache = open_cache(cached(response_cache_stale_s="30"))
    cache.ask()
    cache.engine.degraded = True
    answer = cache.ask()
    assert (hit(answer), dict(answer.parameters)) == ("memory", {})


def test_a_model_that_does_not_allow_it_gives_none(open_cache) -> None:
    clock = FakeClock()
    cache = open_cache(clock=clock)
    cache.ask()
    cache.engine.degraded = True
    clock.advance(60)
    assert hit(cache.ask()) == ""


def test_they_come_before_any_request_is_refused(open_cache) -> None:
    clock = FakeClock()
    cache = open_cache(cached(response_cache_stale_s="30"), clock=clock)
    cache.ask()
    clock.advance(61)
    cache.engine.degraded, cache.engine.refuse = True, Unavailable("shed")
    assert hit(cache.ask()) == "stale"
    assert isinstance(cache.ask(b"more").error, Unavailable)


def test_the_second_level_has_them_too(open_cache) -> None:
    store, clock = MemoryAnswers(), FakeClock(now_ns())
    one = open_cache(cached(response_cache_stale_s="30"), store=store)
    one.ask()
    wait_until(lambda: store.ttl_ms)
    assert all(60_000 < ttl_ms <= 90_000 for ttl_ms in store.ttl_ms.values())
    clock.advance(61)
    two = open_cache(cached(response_cache_stale_s="30"), store=store, clock=clock)
    two.engine.degraded = True
    assert hit(two.ask()) == "stale"


# the second level


def test_what_one_front_door_had_computed_another_finds(open_cache) -> None:
    store = MemoryAnswers()
    one, two = open_cache(store=store), open_cache(store=store)
    one.engine.answer_parameters = {"a": 1, "b": "text", "c": True, "d": 0.5}
    first = one.ask()
    wait_until(lambda: store.records)
    second = two.ask()
    assert (hit(second), two.runs) == ("redis", 0)
    assert (second.outputs, dict(second.parameters)) == (first.outputs, dict(first.parameters))
    assert hit(two.ask()) == "memory"


def test_it_is_kept_there_for_as_long_as_the_model_says(open_cache) -> None:
    store = MemoryAnswers()
    cache = open_cache(cached(response_cache_ttl_s="5"), store=store)
    cache.ask()
    wait_until(lambda: store.ttl_ms)
    (ttl_ms,) = store.ttl_ms.values()
    assert 0 < ttl_ms <= 5000


def test_an_answer_that_is_over_is_not_taken_from_there_either(open_cache) -> None:
    store = MemoryAnswers()
    one = open_cache(store=store)
    one.ask()
    wait_until(lambda: store.records)
    clock = FakeClock(now_ns())
    clock.advance(61)
    assert hit(open_cache(store=store, clock=clock).ask()) == ""


def test_without_redis_requests_go_on_and_it_is_left_alone_for_a_while(open_cache) -> None:
    store = MemoryAnswers()
    store.down = True
    cache = open_cache(store=store)
    assert hit(cache.ask()) == ""
    asked: list[object] = []
    store.read = lambda digests: asked.append(digests) or []
    assert hit(cache.ask(b"more")) == ""
    assert (hit(cache.ask()), asked) == ("memory", [])


class Hanging(MemoryAnswers):
    """Answers nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.go = threading.Event(), threading.Event()

    def read(self, digests):
        self.asked.set()
        assert self.go.wait(30)
        return super().read(digests)


def test_no_request_waits_for_redis_longer_than_is_allowed(open_cache) -> None:
    store = Hanging()
    cache = open_cache(store=store, wait_s=0.001)
    assert hit(cache.ask()) == ""
    assert not store.go.is_set()
    assert cache.shared.ask([]) is False  # nobody else waits for a while
    store.go.set()


def test_a_request_that_is_cancelled_meanwhile_does_not_run(open_cache) -> None:
    store = Hanging()
    cache = open_cache(store=store)
    request = cache.send()
    assert store.asked.wait(10)
    cache.cache.cancel(request)
    assert isinstance(cache.wait(request).error, Cancelled)
    store.go.set()
    wait_until(lambda: not cache.shared._open)
    assert cache.runs == 0


def test_the_end_does_not_leave_anybody_waiting(open_cache) -> None:
    store = Hanging()
    cache = open_cache(store=store)
    request = cache.send()
    assert store.asked.wait(10)
    store.go.set()
    cache.cache.stop()
    assert hit(cache.wait(request)) == ""


def test_what_one_front_door_has_there_is_bounded(open_cache) -> None:
    store = MemoryAnswers()
    cache = open_cache(store=store, redis_bytes=3 * (ENTRY_BYTES + TENSOR_BYTES + 4))
    for n in range(10):
        cache.ask(bytes([n]) * 4)
    wait_until(lambda: cache.unkept("redis_full") == 7)
    assert len(store.records) == 3


def test_room_there_is_free_again_when_answers_expire() -> None:
    room = Room(100)
    assert [room.take(60, 50, 0), room.take(60, 50, 0), room.take(40, 20, 0)] == [True, False, True]
    assert [room.take(40, 90, 19), room.take(40, 90, 20), room.take(60, 90, 50)] == [
        False, True, True,
    ]  # fmt: skip


def test_large_answers_stay_out_of_redis(open_cache) -> None:
    store = MemoryAnswers()
    cache = open_cache(store=store, max_bytes=4 << 20)
    cache.ask(bytes(MAX_ANSWER_BYTES))
    assert (hit(cache.ask(bytes(MAX_ANSWER_BYTES))), cache.unkept("redis_too_large")) == (
        "memory", 1,
    )  # fmt: skip
    assert not store.records


def test_memory_lets_go_of_what_is_over_when_it_is_asked_for() -> None:
    clock = FakeClock()
    memory = Memory(10_000, clock)
    memory.put(b"digest", Kept((), NO_PARAMETERS, clock(), clock(), clock() + 5, 1000))
    assert memory.get(b"digest") is not None
    clock.unix_ns += 5
    assert memory.get(b"digest") is None
    assert (len(memory), memory.size_bytes) == (0, 0)


# at the front port


def ask(served, data: float = 1.0, **options) -> triton.InferResult:
    return served.infer("m", np.array([data], np.float32), **options)


@pytest.fixture
def front(serve):
    return serve(cached(), preprocess_response_cache_bytes=1 << 20, ratio=1.0)


def test_every_asker_gets_its_own_id(front) -> None:
    for name in ("one", "two", ""):
        result = ask(front, request_id=name)
        assert (result.get_response().id, result.as_numpy("OUTPUT0")) == (name, [1.0])
    assert len(front.engine.taken) == 1


def test_statistics_tell_hits_and_misses_as_triton_does(front) -> None:
    for _ in range(3):
        ask(front)
    ask(front, 2.0)
    client = front.client()
    (stats,) = client.get_inference_statistics("m").model_stats
    part = stats.inference_stats
    assert (part.cache_hit.count, part.cache_miss.count, part.success.count) == (2, 2, 4)
    assert part.cache_hit.ns > 0
    assert part.cache_miss.ns > 0
    assert (stats.inference_count, part.queue.count) == (2, 2)


def test_metrics_count_look_ups_by_where_they_ended(front) -> None:
    for _ in range(3):
        ask(front)
    name = "sits_response_cache_lookups_total"
    assert front.metric(name, model="m", result="memory") == 2
    assert front.metric(name, model="m", result="miss") == 1
    assert front.metric("sits_response_cache_answers") == 1
    assert front.metric("sits_response_cache_bytes") > 4


def test_the_client_sees_how_long_an_answer_is_over(serve) -> None:
    made = cached(response_cache_ttl_s="0.000001", response_cache_stale_s="3600")
    front = serve(made, preprocess_response_cache_bytes=1 << 20)
    ask(front)
    front.engine.degraded = True
    parameters = ask(front).get_response().parameters
    assert parameters["sits_stale_ms"].int64_param >= 0
    assert len(front.engine.taken) == 1


def test_the_span_of_a_hit_says_so(front) -> None:
    for _ in range(2):
        ask(front)
    spans = [span for span in front.tracer.spans() if span.name == "preprocess.request"]
    spans.sort(key=lambda span: span.start_ns)
    assert [span.attributes.get("cache") for span in spans] == [None, "memory"]


def test_it_is_off_until_it_is_given_room(serve) -> None:
    front = serve(cached())
    for _ in range(2):
        ask(front)
    assert len(front.engine.taken) == 2
    assert front.front.cache is None
    assert front.front.inference.engine is front.engine


def test_outputs_and_classes_are_arranged_for_each_asker(serve) -> None:
    labels = {"OUTPUT0": ("cat", "dog")}
    made = replace(cached(), labels=labels)
    front = serve(made, preprocess_response_cache_bytes=1 << 20)
    x = np.array([0.25, 0.75], np.float32)
    plain = front.infer("m", x, outputs=[triton.InferRequestedOutput("OUTPUT0")])
    classes = front.infer("m", x, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=1)])
    assert plain.as_numpy("OUTPUT0").tolist() == [0.25, 0.75]
    assert classes.as_numpy("OUTPUT0").tolist() == [b"0.750000:1:dog"]
    assert len(front.engine.taken) == 1
