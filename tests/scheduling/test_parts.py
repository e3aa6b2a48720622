"""Senders of one receiver divide what it takes; a quiet one leaves its part to the others."""

import pytest

from sits_scheduling.parts import LOOK_NS, QUIET_NS, Parts


def joined(*senders: str) -> Parts[str]:
    made: Parts[str] = Parts()
    for sender in senders:
        made.join(sender, 0)
    return made


def send(parts: Parts[str], sender: str, now: int) -> bool:
    """True when parts changed."""
    return parts.used(sender, now) and parts.look(now)


def test_one_alone_has_everything() -> None:
    assert joined("a").of("a", 6) == 6


@pytest.mark.parametrize("total", range(9))
@pytest.mark.parametrize("senders", range(1, 6))
def test_parts_are_equal_and_at_most_one_a_sender_too_many(total: int, senders: int) -> None:
    names = [str(n) for n in range(senders)]
    parts = joined(*names)
    found = [parts.of(name, total) for name in names]
    assert len(set(found)) == 1
    assert total <= sum(found) < total + senders


def test_one_that_sends_nothing_any_more_keeps_a_single_place() -> None:
    parts = joined("a", "b")
    assert not send(parts, "a", QUIET_NS)
    assert parts.of("a", 8) == parts.of("b", 8) == 4
    assert send(parts, "a", QUIET_NS + LOOK_NS)
    assert (parts.of("a", 8), parts.of("b", 8), parts.of("b", 0)) == (8, 1, 0)


def test_one_that_begins_again_has_its_part_at_once() -> None:
    parts, now = joined("a", "b"), 2 * QUIET_NS
    assert send(parts, "a", now)
    assert send(parts, "b", now + 1)
    assert parts.of("a", 8) == parts.of("b", 8) == 4


def test_where_nothing_is_sent_nothing_changes() -> None:
    parts = joined("a", "b")
    assert send(parts, "a", 2 * QUIET_NS)
    assert not send(parts, "a", 20 * QUIET_NS)
    assert parts.of("a", 8) == 8


def test_one_that_leaves_leaves_its_part() -> None:
    parts = joined("a", "b")
    parts.leave("b")
    assert parts.of("a", 8) == 8
    assert send(parts, "a", 2 * QUIET_NS) is False
