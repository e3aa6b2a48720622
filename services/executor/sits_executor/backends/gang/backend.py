"""A model that a gang of GPUs runs together, as any other backend."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Final, NamedTuple

import structlog

from sits_core.scratch import Scratch
from sits_executor.backends.base import Arrays, GangLost, LoadError, Parameters, Signature
from sits_executor.backends.gang import wire
from sits_executor.backends.gang.member import Job, serve

log = structlog.get_logger()

START_S: Final = 300.0
"""Opening a large model on every member takes minutes."""
RUN_S: Final = 60.0
STOP_S: Final = 5.0


class GangFailed(RuntimeError):
    """A member raised, died or did not answer; the gang is started anew for the next batch."""


class _Silent(GangFailed):
    """It died, or did not answer in time: no word about the batch."""


class _Seat(NamedTuple):
    process: BaseProcess
    pipe: "Connection[bytes, bytes]"


class GangBackend:
    """One run at a time: all members work on it. What fails one member ends them all, since the
    others would wait for it in a sum for ever."""

    signature: Signature | None = None
    fallback = ""

    def __init__(self, job: Job, start_s: float = START_S, run_s: float = RUN_S) -> None:
        """Raises `LoadError` when a member cannot load its part."""
        self._job, self._start_s, self._run_s = job, start_s, run_s
        self._turn = threading.Lock()
        self._seats: list[_Seat] = []
        self._start()

    @property
    def gang_size(self) -> int:
        return self._job.size

    @property
    def devices(self) -> Sequence[str]:
        return self._job.devices

    def run(self, inputs: Arrays, parameters: Parameters) -> Arrays:
        with self._turn:
            if not self._seats:
                self._start()
            try:
                return self._run(inputs)
            except (GangFailed, OSError, EOFError) as error:
                self._end()
                log.warning("gang.failed", model=self._job.model, cause=str(error))
                raise self._failure(error) from error

    def close(self) -> None:
        with self._turn:
            self._end()

    def _failure(self, error: Exception) -> Exception:
        """A member that raised did so at the batch: each of its requests is tried alone. Else
        another executor may do."""
        if isinstance(error, GangFailed) and not isinstance(error, _Silent):
            return GangFailed(f"the gang failed: {error}")
        return GangLost(f"the gang of model '{self._job.model}' failed: {error}")

    def _run(self, inputs: Arrays) -> Arrays:
        header = wire.header_of(inputs)
        for seat in self._seats:
            wire.send(seat.pipe, header)
        wire.send_arrays(self._seats[0].pipe, inputs)
        answer = self._first_answer(self._run_s)
        return wire.receive_arrays(self._seats[0].pipe, answer)

    def _first_answer(self, limit_s: float) -> wire.Header:
        """That of the first member, or the first failure of any."""
        ends = time.monotonic() + limit_s
        pipes = {seat.pipe: rank for rank, seat in enumerate(self._seats)}
        while True:
            ready = wait(list(pipes), max(0.0, ends - time.monotonic()))
            if not ready:
                raise _Silent(f"no answer within {limit_s:g} s")
            for pipe in ready:
                rank = pipes[pipe]  # type: ignore[index] # they are those that we gave
                header = self._received(rank)
                if rank == 0:
                    return header

    def _received(self, rank: int) -> wire.Header:
        try:
            header = wire.receive(self._seats[rank].pipe)
        except EOFError:
            raise _Silent(f"member {rank} died") from None
        if header is None or "error" in header:
            raise GangFailed(f"member {rank}: {(header or {}).get('error', 'it left')}")
        return header

    def _start(self) -> None:
        """Every member loads its part; ready when all are."""
        self._scratch = Scratch("gang")
        job = replace(self._job, meeting=(self._scratch.path / "meeting").as_uri())
        self._seats = [_seat(rank, job) for rank in range(job.size)]
        try:
            self._await_all()
        except GangFailed as error:
            self._end()
            raise LoadError(str(error)) from None

    def _await_all(self) -> None:
        ends = time.monotonic() + self._start_s
        for rank, seat in enumerate(self._seats):
            while not seat.pipe.poll(0.1):
                self._raise_failures(rank)
                if time.monotonic() > ends:
                    raise GangFailed(f"member {rank} did not load within {self._start_s:g} s")
            self._received(rank)

    def _raise_failures(self, waiting: int) -> None:
        """A later member may have failed while an earlier one waits for it."""
        for rank in range(waiting + 1, len(self._seats)):
            seat = self._seats[rank]
            if not seat.process.is_alive() and not seat.pipe.poll():
                raise GangFailed(f"member {rank} died")
            if seat.pipe.poll() and not seat.process.is_alive():
                self._received(rank)

    def _end(self) -> None:
        for seat in self._seats:
            _quietly(lambda seat=seat: seat.pipe.send_bytes(wire.STOP))  # type: ignore[misc]
        ends = time.monotonic() + STOP_S
        for seat in self._seats:
            seat.process.join(max(0.0, ends - time.monotonic()))
            seat.process.kill()
            seat.process.join()
            seat.pipe.close()
        self._seats = []
        self._scratch.remove()


def _seat(rank: int, job: Job) -> _Seat:
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(
        target=serve, args=(rank, job, theirs), name=f"gang-{job.model}-{rank}", daemon=True
    )
    process.start()
    theirs.close()
    return _Seat(process, ours)


def _quietly(act: Callable[[], None]) -> None:
    try:
        act()
    except OSError:
        return
