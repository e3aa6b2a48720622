"""Accepted work is waited for, but not for ever."""

from sits_core.drain import Drain, finish


def test_who_ends_by_signal_gets_the_grace_of_the_settings() -> None:
    drain = Drain()
    drain.set()
    assert drain.grace_s(10.0) == 10.0


def test_work_that_came_a_moment_later_is_waited_for_too() -> None:
    left = [False, True, False]
    assert finish(lambda: left.pop() if left else True, 60)
    assert left == []


def test_work_that_does_not_end_is_given_up_after_the_grace() -> None:
    assert not finish(lambda: False, 0.0)
