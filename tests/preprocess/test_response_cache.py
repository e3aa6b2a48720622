"""Who gets an answer again, whose answers are kept apart, and when one is not given any more."""

from dataclasses import replace

import pytest

from sits_core.errors import Unavailable
from sits_core.testing import FakeClock
from sits_preprocess.cache.memory import ENTRY_BYTES, TENSOR_BYTES
from sits_preprocess.cache.testing import INPUT, OUTPUT, cached, hit
from sits_preprocess.fake_engine import failing, model
from sits_preprocess.request import TensorData


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
