"""A device whose time is cut into slices, each model's runs going at its share of the speed.

A slice that its model does not use is lost, as with MIG or fixed turns: that is what makes
the sizes of slices matter.
"""

from collections import deque

from sits_sim.clock import Clock


class Slice:
    """One model's line and its part of the device. Work is in ns on the whole device."""

    def __init__(self, clock: Clock, share: float) -> None:
        self._clock, self._share = clock, share
        self._line: deque[tuple[int, int]] = deque()
        self._left_ns = 0.0
        self._since_ns = 0
        self._event = 0
        self.waits_ns: list[int] = []
        self.came_ns = 0
        self.finished = 0

    def __repr__(self) -> str:
        return f"<Slice {self._share:.2f}, {len(self._line)} in line>"

    def __len__(self) -> int:
        """Runs in line, the one that runs included."""
        return len(self._line)

    def arrive(self, run_ns: int) -> None:
        self.came_ns += run_ns
        self._line.append((self._clock.now_ns, run_ns))
        if len(self._line) == 1:
            self._start()

    def take_came_ns(self) -> int:
        """Work that came since the last call."""
        came, self.came_ns = self.came_ns, 0
        return came

    def set_share(self, share: float) -> None:
        """What runs goes on at the new speed."""
        self._progress()
        self._share = share
        self._expect_end()

    def _start(self) -> None:
        came_ns, run_ns = self._line[0]
        self.waits_ns.append(self._clock.now_ns - came_ns)
        self._left_ns, self._since_ns = float(run_ns), self._clock.now_ns
        self._expect_end()

    def _progress(self) -> None:
        now = self._clock.now_ns
        if self._line:
            self._left_ns = max(0.0, self._left_ns - (now - self._since_ns) * self._share)
        self._since_ns = now

    def _expect_end(self) -> None:
        self._event += 1
        if self._line:
            event = self._event
            self._clock.after(-int(-self._left_ns / self._share // 1), lambda: self._ended(event))

    def _ended(self, event: int) -> None:
        if event != self._event:
            return  # the speed changed meanwhile
        self._line.popleft()
        self.finished += 1
        if self._line:
            self._start()
