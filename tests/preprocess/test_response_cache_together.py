"""Of equal requests under way at the same time one is computed, whatever becomes of it."""

import pytest

from sits_core.clock import Deadline
from sits_core.errors import Cancelled
from sits_preprocess.cache.testing import cached, hit
from sits_preprocess.fake_engine import failing

LOOKUPS = "sits_response_cache_lookups_total"


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
