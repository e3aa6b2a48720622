"""Answers that are over are given while governance degrades, and say so."""

from sits_core.clock import now_ns
from sits_core.errors import Unavailable
from sits_core.testing import FakeClock, MemoryAnswers, wait_until
from sits_preprocess.cache.testing import cached, hit
from sits_preprocess.fake_engine import failing


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
