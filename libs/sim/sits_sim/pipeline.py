"""Two-stage pipelines across hosts, and collectives that use the same links."""

from collections.abc import Callable
from typing import Final

import simpy

from sits_sim.clock import Clock, Process
from sits_sim.link import SharedLink

STAGED: Final = 2
"""Hand-offs under way at once: double buffering, as executors stage their inputs."""

CHUNK_BYTES: Final = 1 << 20
"""Collectives go in pieces of this size, so that somebody can hold them up in between."""


Gate = Callable[[int], int]
"""For how many ns a piece of collective traffic has to wait before it may be sent."""


class Pipeline:
    """Micro-batches run on one GPU, then on one of the next host, as fast as they can.

    A GPU whose hand-offs do not get away stops: that is what contention costs. `sending` is
    told of every hand-off.
    """

    def __init__(
        self, clock: Clock, link: SharedLink, stage_ns: Callable[[], int], size_bytes: int,
        latency_ns: int, sending: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self._clock, self._link, self._stage_ns = clock, link, stage_ns
        self._size_bytes, self._latency_ns, self._sending = size_bytes, latency_ns, sending
        self._staging = simpy.Resource(clock.env, STAGED)
        self._arrived = simpy.Store(clock.env, STAGED)
        self.delays_ns: list[int] = []
        self.finished = 0

    def start(self, until_ns: int) -> None:
        self._clock.process(self._first_stage(until_ns))
        self._clock.process(self._second_stage())

    def _first_stage(self, until_ns: int) -> Process:
        while self._clock.now_ns < until_ns:
            yield self._clock.wait(self._stage_ns())
            place = self._staging.request()
            yield place
            self._clock.process(self._hand_off(place))

    def _hand_off(self, place: simpy.resources.resource.Request) -> Process:
        started_ns = self._clock.now_ns
        sent = self._clock.env.event()
        self._sending(self._size_bytes)
        self._link.send(self._size_bytes, lambda: _succeed(sent))
        yield sent
        yield self._clock.wait(self._latency_ns)
        self.delays_ns.append(self._clock.now_ns - started_ns)
        yield self._arrived.put(None)
        self._staging.release(place)

    def _second_stage(self) -> Process:
        while True:
            yield self._arrived.get()
            yield self._clock.wait(self._stage_ns())
            self.finished += 1


class Gang:
    """GPUs of two hosts that compute, then all-reduce over the link, again and again.

    `flows` GPUs of this host send at once, each its part of the bytes.
    """

    def __init__(
        self, clock: Clock, link: SharedLink, gate: Gate, size_bytes: int, flows: int,
        compute_ns: Callable[[], int],
    ) -> None:  # fmt: skip
        self._clock, self._link, self._gate = clock, link, gate
        self._flow_bytes, self._flows, self._compute_ns = size_bytes // flows, flows, compute_ns
        self.times_ns: list[int] = []

    def start(self, until_ns: int) -> None:
        self._clock.process(self._steps(until_ns))

    def _steps(self, until_ns: int) -> Process:
        env = self._clock.env
        while self._clock.now_ns < until_ns:
            yield self._clock.wait(self._compute_ns())
            started_ns = self._clock.now_ns
            yield env.all_of([env.process(self._flow()) for _ in range(self._flows)])
            self.times_ns.append(self._clock.now_ns - started_ns)

    def _flow(self) -> Process:
        left = self._flow_bytes
        while left > 0:
            piece = min(left, CHUNK_BYTES)
            yield self._clock.wait(self._gate(piece))
            sent = self._clock.env.event()
            self._link.send(piece, lambda done=sent: _succeed(done))  # type: ignore[misc]
            yield sent
            left -= piece


def _succeed(event: simpy.Event) -> None:
    event.succeed()
