"""Which pages of a pool are free."""

from bisect import bisect_left, insort


class FreePages:
    """Best fit over runs of free pages; neighbours become one run when given back.

    A run is found by bisection; there are never more runs than slots in use plus one.
    After Knuth, The Art of Computer Programming 1, section 2.5.
    Weakness: where slots of many sizes live long, free pages lie scattered and a large
    slot is refused although their sum would do. Payloads live for milliseconds, and a
    refusal costs a copy, not a request.
    """

    def __init__(self, pages: int) -> None:
        self.total = pages
        self._runs: list[tuple[int, int]] = []
        self._pages_from: dict[int, int] = {}
        self._start_of_run_to: dict[int, int] = {}
        self.free = 0
        if pages:
            self._add(0, pages)

    @property
    def largest_run(self) -> int:
        return self._runs[-1][0] if self._runs else 0

    def take(self, pages: int) -> int | None:
        """First of `pages` adjacent pages, None when there are none."""
        at = bisect_left(self._runs, (pages, 0))
        if at == len(self._runs):
            return None
        size, start = self._runs[at]
        self._remove(start)
        if size > pages:
            self._add(start + pages, size - pages)
        return start

    def give(self, start: int, pages: int) -> None:
        """Back come `pages` that `take` gave; once."""
        end = start + pages
        before = self._start_of_run_to.get(start)
        if before is not None:
            self._remove(before)
            start = before
        if end in self._pages_from:
            end += self._remove(end)
        self._add(start, end - start)

    def _add(self, start: int, pages: int) -> None:
        insort(self._runs, (pages, start))
        self._pages_from[start] = pages
        self._start_of_run_to[start + pages] = start
        self.free += pages

    def _remove(self, start: int) -> int:
        pages = self._pages_from.pop(start)
        del self._start_of_run_to[start + pages]
        del self._runs[bisect_left(self._runs, (pages, start))]
        self.free -= pages
        return pages

    def __repr__(self) -> str:
        return f"<FreePages {self.free}/{self.total} in {len(self._runs)} runs>"
