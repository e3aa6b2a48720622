"""What one hop costs: a ring, a gRPC stream, a Unix socket, each between two processes.

Ring and stream are links as services use them. "queued" is the ring with every message handed
to the link's own thread, as against written by the caller. A round trip goes from reader
thread to reader thread, so no way pays for a hop that a service would not have. Runs of the
ways alternate; figures are medians over the runs.
"""

import argparse
import json
import os
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console
from rich.progress import track

from sits_channel import link_outgoing, ring
from sits_channel.bounded import BoundedChannel
from sits_channel.link import Link, LinkClient, link_handler
from sits_channel.ring_files import Rings
from sits_core.rpc import Server, open_channel
from sits_core.settings import Settings
from sits_sim.figures import Figure, Report, plain

SERVICE: Final = "bench.Echo"
WAYS: Final = ("ring", "queued", "grpc", "socket")
SIZES: Final = (256, 1024, 32 << 10)
PIPELINED_BYTES: Final = 1024
IN_FLIGHT: Final = 64
TIMEOUT_S: Final = 60.0
_LENGTH = struct.Struct("<I")

Send = Callable[[bytes], object]
Received = Callable[[bytes, Send], object]


class Spent(NamedTuple):
    """Of one run: seconds for each message, and processor time of both processes for each."""

    message_s: list[float]
    cpu_s: float


class Timer:
    """Keeps `in_flight` messages under way until `count` came back."""

    def __init__(self, count: int, size: int, in_flight: int) -> None:
        self._message, self._count, self._in_flight = bytes(size), count, in_flight
        self._sent_s: list[float] = []
        self.took_s: list[float] = []
        self.done = threading.Event()

    def start(self, send: Send) -> None:
        for _ in range(self._in_flight):
            self._send(send)

    def received(self, message: bytes, send: Send) -> None:
        self.took_s.append(time.perf_counter() - self._sent_s[len(self.took_s)])
        if len(self._sent_s) < self._count:
            self._send(send)
        elif len(self.took_s) == self._count:
            self.done.set()

    def _send(self, send: Send) -> None:
        self._sent_s.append(time.perf_counter())
        send(self._message)


class Listener:
    """Hands messages of a link, but not the greeting, to `received`."""

    def __init__(self, received: Received) -> None:
        self._received = received
        self.link: Link | None = None
        self.ready = threading.Event()

    def opened(self, link: Link) -> None:
        self.link = link

    def received(self, link: Link, message: bytes) -> None:
        if message == b"greeting":
            self.ready.set()
        else:
            self._received(message, link.write)

    def closed(self, link: Link, reason: str) -> None: ...


def echo(message: bytes, send: Send) -> None:
    send(message)


# the peer, in a process of its own


def serve(way: str, directory: str) -> None:
    """Echo until killed; says where on stdout."""
    if way == "socket":
        serve_socket(directory)
    if way == "queued":
        write_through_queue()
    handler = link_handler(SERVICE, Listener(echo), lambda: b"greeting", rings(way, directory))
    server = Server("127.0.0.1:0", Settings())
    server.add_handler(handler, SERVICE)
    with server:
        print(f"127.0.0.1:{server.port}", flush=True)
        threading.Event().wait()


def serve_socket(directory: str) -> None:
    path = os.path.join(directory, "echo")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path)
        listening.listen()
        print(path, flush=True)
        while True:
            connection, _ = listening.accept()
            threading.Thread(target=read_frames, args=(connection, echo), daemon=True).start()


def read_frames(connection: socket.socket, received: Received) -> None:
    """Messages with their length in front, until the other end is gone."""

    def send(message: bytes) -> None:
        connection.sendall(_LENGTH.pack(len(message)) + message)

    with connection, connection.makefile("rb") as stream:
        while head := stream.read(_LENGTH.size):
            received(stream.read(_LENGTH.unpack(head)[0]), send)


def rings(way: str, directory: str) -> Rings | None:
    return Rings(directory, "bench", way, 256 << 20) if way != "grpc" else None


def write_through_queue() -> None:
    link_outgoing.Outgoing.write = BoundedChannel.write  # type: ignore[method-assign]


# the measuring end, in a process of its own as well, because "queued" changes it for good


def measure(way: str, directory: str, peer: int, address: str, runs: list[list[int]]) -> None:
    """Prints what each run of (count, size, in flight) spent, as JSON."""
    if way == "queued":
        write_through_queue()
    with connected(way, directory, address) as start:
        for count, size, in_flight in runs:
            start(Timer(count // 10 + in_flight, size, in_flight))
            timer, began_s, cpu_s = Timer(count, size, in_flight), time.perf_counter(), cpu(peer)
            start(timer)
            took_s, cpu_s = time.perf_counter() - began_s, cpu(peer) - cpu_s
            each_s = timer.took_s if in_flight == 1 else [took_s / count]
            print(json.dumps(Spent(each_s, cpu_s / count)), flush=True)


def cpu(peer: int) -> float:
    """Processor seconds of both processes; the peer's in steps of the kernel's clock."""
    fields = Path(f"/proc/{peer}/stat").read_text().rpartition(")")[2].split()
    return time.process_time() + (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def connected(way: str, directory: str, address: str) -> Iterator[Callable[[Timer], None]]:
    """A function that runs a timer over an open connection."""
    current: list[Timer] = []

    def received(message: bytes, send: Send) -> None:
        current[0].received(message, send)

    def run(send: Send, timer: Timer) -> None:
        current[:] = [timer]
        timer.start(send)
        if not timer.done.wait(TIMEOUT_S):
            raise SystemExit(f"{way}: {len(timer.took_s)} messages came back")

    if way == "socket":
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            reader = threading.Thread(target=read_frames, args=(connection, received), daemon=True)
            reader.start()
            yield lambda timer: run(
                lambda message: connection.sendall(_LENGTH.pack(len(message)) + message), timer
            )
        return
    listener = Listener(received)
    client = LinkClient(
        address, f"/{SERVICE}/Link", listener,
        lambda at: open_channel(at, Settings()), rings=rings(way, directory),
    )  # fmt: skip
    client.start()
    if not listener.ready.wait(TIMEOUT_S) or listener.link is None:
        raise SystemExit(f"{way}: no greeting from {address}")
    expected = "grpc" if way == "grpc" else "ring"
    if listener.link.transport != expected:
        raise SystemExit(f"{way}: the link uses {listener.link.transport}")
    link = listener.link
    yield lambda timer: run(link.write, timer)
    client.stop()


# all of it


def run_way(way: str, directory: str, plans: list[list[int]]) -> list[Spent]:
    script = [sys.executable, __file__]
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*script, "--serve", way, directory], stdout=subprocess.PIPE, text=True
    ) as peer:
        try:
            address = peer.stdout.readline().strip() if peer.stdout else ""
            task = json.dumps([way, directory, peer.pid, address, plans])
            command = [*script, "--measure", task]
            done = subprocess.run(command, check=True, capture_output=True, text=True)  # noqa: S603 - ourselves
        finally:
            peer.kill()
    return [Spent(*json.loads(line)) for line in done.stdout.splitlines()]


def bench(repeats: int, count: int, *, quiet: bool) -> Report:
    plans = [[count, size, 1] for size in SIZES] + [[5 * count, PIPELINED_BYTES, IN_FLIGHT]]
    spent: dict[str, list[list[Spent]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory(prefix="sits-bench-", dir="/dev/shm") as shm:
        runs = [way for _ in range(repeats) for way in WAYS]
        console = Console(stderr=True)
        for way in track(runs, "runs", console=console, disable=quiet, auto_refresh=False):
            spent[way].append(run_way(way, tempfile.mkdtemp(dir=shm), plans))
    figures = [figure for i, plan in enumerate(plans) for figure in compare(spent, i, plan)]
    return Report({"repeats": repeats, "round_trips": count, "in_flight": IN_FLIGHT}, figures)


def compare(spent: dict[str, list[list[Spent]]], index: int, plan: list[int]) -> list[Figure]:
    """One figure a way; the reference is the gRPC stream."""
    _, size, in_flight = plan
    figures = []
    for quantile in (0.5, 0.99) if in_flight == 1 else (0.5,):
        name = f"p{quantile * 100:.0f} round trip" if in_flight == 1 else "messages a second"
        values = {
            way: statistics.median(at(quantile, run[index].message_s) for run in runs)
            for way, runs in spent.items()
        }
        for way, value in values.items():
            ratio = values["grpc"] / value
            if in_flight == 1:
                figures.append(
                    Figure(f"{way}, {size} B: {name}", value * 1e6, "µs",
                           values["grpc"] * 1e6, ratio)
                )  # fmt: skip
            else:
                figures.append(
                    Figure(f"{way}, {size} B, {in_flight} in flight: {name}", 1 / value, "1/s",
                           1 / values["grpc"], ratio)
                )  # fmt: skip
    for way, runs in spent.items():
        cpu_us = statistics.median(run[index].cpu_s for run in runs) * 1e6
        figures.append(plain(f"{way}, {size} B, {in_flight} in flight: processor", cpu_us, "µs"))
    return figures


def at(quantile: float, values: list[float]) -> float:
    return sorted(values)[int(quantile * (len(values) - 1))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--count", type=int, default=4000, help="round trips of each size")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--measure", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
    elif options.measure:
        measure(*options.measure)
    elif not ring.available():
        print("the ring's C core is not compiled here", file=sys.stderr)
        return 1
    else:
        show(bench(options.repeats, options.count, quiet=options.json), as_json=options.json)
    return 0


def show(report: Report, *, as_json: bool) -> None:
    if as_json:
        print(json.dumps(report.as_dict(), indent=2))
        return
    for figure in report.figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:6.1f} × gRPC"
        print(f"{figure.figure:48} {figure.value:>12,.1f} {figure.unit:4} {ratio}")


if __name__ == "__main__":
    sys.exit(main())
