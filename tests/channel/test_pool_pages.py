"""Free pages: none is given out twice, all come back, what is adjacent becomes one run."""

import hypothesis.strategies as st
from hypothesis import given
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from sits_channel.pool_pages import FreePages

TOTAL = 64


class Pages(RuleBasedStateMachine):
    """Against a model that knows the owner of every page."""

    lent = Bundle("lent")

    def __init__(self) -> None:
        super().__init__()
        self.pages = FreePages(TOTAL)
        self.owners: list[int | None] = [None] * TOTAL
        self.next_owner = 0

    @rule(target=lent, count=st.integers(1, TOTAL))
    def take(self, count: int) -> tuple[int, int] | None:
        start = self.pages.take(count)
        if start is None:
            assert count > self.longest_free()
            return None
        assert self.owners[start : start + count] == [None] * count
        self.next_owner += 1
        self.owners[start : start + count] = [self.next_owner] * count
        return start, count

    @rule(run=consumes(lent))
    def give(self, run: tuple[int, int] | None) -> None:
        if run is None:
            return
        start, count = run
        self.pages.give(start, count)
        self.owners[start : start + count] = [None] * count

    @invariant()
    def counts_agree(self) -> None:
        assert self.pages.free == self.owners.count(None)
        assert self.pages.largest_run == self.longest_free()

    def teardown(self) -> None:
        for owner in set(self.owners) - {None}:
            self.pages.give(self.owners.index(owner), self.owners.count(owner))
        assert repr(self.pages) == f"<FreePages {TOTAL}/{TOTAL} in 1 runs>"

    def longest_free(self) -> int:
        return max(map(len, "".join(".x"[o is not None] for o in self.owners).split("x")))


TestPages = Pages.TestCase


def test_the_smallest_run_that_fits_is_taken() -> None:
    pages = FreePages(20)
    starts = [pages.take(size) for size in (5, 1, 3, 1, 10)]
    assert starts == [0, 5, 6, 9, 10]
    for start, size in ((0, 5), (6, 3)):
        pages.give(start, size)
    assert pages.take(3) == 6
    assert pages.take(2) == 0


@given(st.permutations(range(16)))
def test_pages_given_back_in_any_order_become_one_run(order: list[int]) -> None:
    pages = FreePages(16)
    for _ in range(16):
        pages.take(1)
    for start in order:
        pages.give(start, 1)
    assert pages.take(16) == 0


def test_no_pages_hold_nothing() -> None:
    assert FreePages(0).take(1) is None
    assert FreePages(0).largest_run == 0
