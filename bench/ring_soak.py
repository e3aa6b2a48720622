"""Kill -9 either end of a pair of rings at random moments, again and again.

Each round two processes agree on rings through a file, as the ends of a link do, and send
each other messages of random sizes until one of them, or both, is killed. A socket stands
in for the gRPC stream: its end tells the survivor that its peer is gone. Every tenth round
nobody is killed: one end leaves after a number of messages, and all of them must arrive.
"""

import argparse
import contextlib
import faulthandler
import json
import os
import random
import select
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from sits_channel.pool_files import remove_orphans
from sits_channel.ring import RingEnd, available
from sits_channel.ring_files import METADATA_KEY, Rings
from sits_sim.figures import Report, at_most, plain

CAPACITY_BYTES = 64 << 10
MAX_MESSAGE_BYTES = 1 << 20
DEPLOYMENT = "soak"
LONGEST_LIFE_S = 0.008
STUCK_S = 20.0
GRACEFUL_EVERY = 10
FAREWELL_MESSAGES = 500

_HEAD = struct.Struct("<QQ")
_NOISE = random.Random(1).randbytes(1 << 20)  # noqa: S311 - the same in every process
_REPORT = struct.Struct("<QQQ?")


class Seen(NamedTuple):
    """What one end saw. `torn`: messages that were not the next one, whole."""

    messages: int = 0
    received_bytes: int = 0
    torn: int = 0
    finished: bool = False


class Round(NamedTuple):
    seen: list[Seen]
    stuck: int
    crashed: int
    lost: int
    leaked: int


def message(number: int) -> bytes:
    """The message of this number: its size and its bytes follow from it."""
    rng = random.Random(number)  # noqa: S311 - the same in every process
    longest = rng.choice((0, 64, 2_000, 2_000, 20_000, 2 * CAPACITY_BYTES))
    size = rng.randint(0, longest)
    start = rng.randrange(len(_NOISE) - size)
    return _HEAD.pack(number, size) + _NOISE[start : start + size]


# one end, in a process of its own


def client(directory: str, name: str, stream: socket.socket) -> RingEnd | None:
    offered = Rings(directory, DEPLOYMENT, name, MAX_MESSAGE_BYTES, CAPACITY_BYTES).offer()
    if offered is None:
        raise SystemExit("no shared memory")
    stream.sendall(offered.metadata[1])
    answer = stream.recv(4096)
    return offered.settle([(METADATA_KEY, answer)])


def server(directory: str, name: str, stream: socket.socket) -> RingEnd | None:
    rings = Rings(directory, DEPLOYMENT, name, MAX_MESSAGE_BYTES, CAPACITY_BYTES)
    end, answer = rings.accept([(METADATA_KEY, stream.recv(4096))])
    if answer:
        stream.sendall(answer[0][1])
    return end


def exchange(end: RingEnd, stream: socket.socket, farewell: int | None) -> Seen:
    """Send and check until the peer is gone, or until `farewell` messages are sent."""
    writer = threading.Thread(target=send, args=(end, stream, farewell), daemon=True)
    watch = threading.Thread(target=close_with, args=(end, stream), daemon=True)
    writer.start()
    watch.start()
    count = received_bytes = torn = 0
    while messages := end.reader.read():
        for got in messages:
            torn += got != message(count)
            count += 1
            received_bytes += len(got)
    writer.join()
    return Seen(count, received_bytes, torn, finished=True)


def send(end: RingEnd, stream: socket.socket, farewell: int | None) -> None:
    number = 0
    while farewell is None or number < farewell:
        next_one = message(number)
        if not end.writer.try_write(next_one) and not end.writer.write(next_one):
            return
        number += 1
    stream.shutdown(socket.SHUT_RDWR)


def close_with(end: RingEnd, stream: socket.socket) -> None:
    with contextlib.suppress(ConnectionError):
        while stream.recv(1):
            pass
    end.close()


def live(
    start: Callable[[], RingEnd | None], stream: socket.socket, report: int, farewell: int | None
) -> None:
    """The whole life of a forked process."""
    faulthandler.enable()
    try:
        end = start()
        seen = Seen(finished=True) if end is None else exchange(end, stream, farewell)
        os.write(report, _REPORT.pack(*seen))
    except ConnectionError:
        os.write(report, _REPORT.pack(*Seen(finished=True)))
    finally:
        # Not `exit`: what the parent opened is not ours to close.
        os._exit(0)


# the parent


class Ends:
    """Two processes that talk, the client first."""

    def __init__(
        self, directory: str, number: int, farewell: tuple[int | None, int | None]
    ) -> None:
        self.pids: list[int] = []
        self._reports: list[int] = []
        streams = socket.socketpair()
        for side, (stream, start) in enumerate(zip(streams, (client, server), strict=True)):
            report, report_in = os.pipe()
            pid = os.fork()
            if pid == 0:
                streams[1 - side].close()
                pin(side)
                name = f"{start.__name__}-{number}"
                live(lambda: start(directory, name, stream), stream, report_in, farewell[side])  # noqa: B023 - runs at once
            os.close(report_in)
            self.pids.append(pid)
            self._reports.append(report)
        for stream in streams:
            stream.close()

    def kill(self, side: int) -> None:
        os.kill(self.pids[side], signal.SIGKILL)

    def finish(self) -> tuple[list[Seen], int]:
        """What each saw, and how many were stuck."""
        seen, stuck = [], 0
        for pid, report in zip(self.pids, self._reports, strict=True):
            if not select.select([report], [], [], STUCK_S)[0]:
                stuck += 1
                os.kill(pid, signal.SIGABRT)  # shows where all threads are
            raw = os.read(report, _REPORT.size)
            os.close(report)
            os.waitpid(pid, 0)
            seen.append(Seen(*_REPORT.unpack(raw)) if raw else Seen())
        return seen, stuck


def pin(side: int) -> None:
    processors = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {processors[side % len(processors)]})


def play(directory: str, number: int, rng: random.Random) -> Round:
    leaver = rng.randrange(2)
    graceful = number % GRACEFUL_EVERY == GRACEFUL_EVERY - 1
    farewell = [None, None]  # type: list[int | None]
    if graceful:
        farewell[leaver] = FAREWELL_MESSAGES
    ends = Ends(directory, number, (farewell[0], farewell[1]))
    victims = set() if graceful else {leaver, rng.choice((leaver, 1 - leaver, leaver))}
    if victims:
        time.sleep(rng.uniform(0, LONGEST_LIFE_S))
    for side in victims:
        ends.kill(side)
    seen, stuck = ends.finish()
    lost = FAREWELL_MESSAGES - seen[1 - leaver].messages if graceful else 0
    crashed = sum(not seen[side].finished for side in {0, 1} - victims)
    return Round(seen, stuck, crashed - stuck, lost, leaked(directory))


def leaked(directory: str) -> int:
    """Files that the next start of a service would not remove, or more than one that it would."""
    orphans = remove_orphans(directory, DEPLOYMENT)
    return len(os.listdir(directory)) + max(0, orphans - 1)


def soak(rounds: int, seed: int, *, quiet: bool) -> Report:
    rng, started_s = random.Random(seed), time.monotonic()  # noqa: S311 - repeatable
    with tempfile.TemporaryDirectory(prefix="sits-soak-", dir="/dev/shm") as directory:
        numbers = track(
            range(rounds), "rounds", console=Console(stderr=True), disable=quiet, auto_refresh=False
        )
        played = [play(directory, number, rng) for number in numbers]
    seen = [seen for one in played for seen in one.seen]
    parameters: dict[str, object] = {
        "rounds": rounds, "seed": seed, "capacity_bytes": CAPACITY_BYTES,
        "processors": len(os.sched_getaffinity(0)),
    }  # fmt: skip
    return Report(
        parameters,
        [
            plain("rounds", rounds, "rounds"),
            plain("time", time.monotonic() - started_s, "s"),
            plain("messages read by survivors", sum(one.messages for one in seen), "messages"),
            plain("bytes read by survivors", sum(one.received_bytes for one in seen), "bytes"),
            at_most("torn, lost or doubled messages", sum(one.torn for one in seen), "messages", 0),
            at_most("lost when an end left in order", sum(r.lost for r in played), "messages", 0),
            at_most("stuck survivors", sum(r.stuck for r in played), "processes", 0),
            at_most("crashed survivors", sum(r.crashed for r in played), "processes", 0),
            at_most("leaked files", sum(r.leaked for r in played), "files", 0),
        ],
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args()
    if not available():
        print("the ring's C core is not compiled here", file=sys.stderr)
        return 1
    report = soak(options.rounds, options.seed, quiet=options.json)
    if options.json:
        print(json.dumps(report.as_dict(), indent=2))
    else:
        for figure in report.figures:
            verdict = {None: "", True: "holds", False: "FAILS"}[figure.holds]
            print(f"{figure.figure:36} {figure.value:>16,.6g} {figure.unit:10} {verdict}")
    return 0 if report.holds else 1


if __name__ == "__main__":
    sys.exit(main())
