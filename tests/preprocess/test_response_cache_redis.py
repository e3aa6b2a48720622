"""The second level of the response cache: what front doors share, and how little Redis may cost."""

import threading

from sits_core.clock import now_ns
from sits_core.errors import Cancelled
from sits_core.testing import FakeClock, MemoryAnswers, wait_until
from sits_preprocess.cache.memory import ENTRY_BYTES, TENSOR_BYTES, Kept, Memory
from sits_preprocess.cache.shared import MAX_ANSWER_BYTES, Room
from sits_preprocess.cache.testing import cached, hit
from sits_preprocess.request import NO_PARAMETERS


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
