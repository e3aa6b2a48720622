"""The load generator counts what happens, bounds what it does, and loads nobody else."""

import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import grpc
import numpy as np
import pytest

from sits_bench import loadgen, messages
from sits_bench.loadgen import BenchError, Load, Stall, own_stalls
from sits_bench.messages import Inference, random_floats

pytestmark = pytest.mark.usefixtures("loadgen_built")

KILOBYTE = Inference("m", {"INPUT": random_floats(1, 1, 256)})
Handler = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def serving(handler: Handler, **options: int) -> Iterator[str]:
    server = grpc.server(
        futures.ThreadPoolExecutor(8), options=[(f"grpc.{name}", n) for name, n in options.items()]
    )
    method = grpc.unary_unary_rpc_method_handler(handler)
    service, _, name = loadgen.INFER[1:].partition("/")
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {name: method}),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(0).wait()


@pytest.fixture
def requests(tmp_path: Path) -> Path:
    return messages.write(tmp_path / "requests", [KILOBYTE])


def short(requests: Path, **more: object) -> Load:
    return Load(requests, warm_up_s=0.05, duration_s=0.3, **more)


def test_a_closed_loop_sends_the_file_and_keeps_so_many_under_way(requests: Path) -> None:
    seen: set[bytes] = set()
    now, most, lock = 0, 0, threading.Lock()

    def handler(request: bytes, _context: grpc.ServicerContext) -> bytes:
        nonlocal now, most
        with lock:
            seen.add(request)
            now += 1
            most = max(most, now)
        with lock:
            now -= 1
        return request

    with serving(handler) as target:
        found = loadgen.run(short(requests, in_flight=4), target)
    assert seen == {KILOBYTE.grpc()}
    assert 1 <= most <= 4
    assert found.ok > 0
    assert found.statuses == {0: found.answered.count}
    assert 0 < found.answered.p50 <= found.answered.p99 <= found.answered.max


@pytest.mark.parametrize("key", ["grpc-retry-pushback-ms", "sits-retry-after-ms"])
def test_refusals_are_counted_by_status_and_their_pushback_is_seen(
    requests: Path, key: str
) -> None:
    def handler(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_trailing_metadata(((key, "50"), ("sits-reason", "X")))
        context.abort(grpc.StatusCode.UNAVAILABLE, "too much")

    with serving(handler) as target:
        found = loadgen.run(short(requests, in_flight=2), target)
    assert found.ok == found.answered.count == 0
    assert found.statuses == {14: found.refused.count}
    assert found.pushbacks == found.refused.count > 0
    assert found.refused_share == 1
    assert found.first_error == "too much"


def test_an_open_loop_follows_its_schedule_and_tells_kinds_apart(tmp_path: Path) -> None:
    pair = [KILOBYTE, Inference("m", {"INPUT": random_floats(2, 1, 8)}, kind=1)]
    requests = messages.write(tmp_path / "requests", pair)
    at_s, which = np.linspace(0.05, 0.349, 90), np.arange(90) % 3 // 2
    load = short(requests, at_s=at_s, which=which, connections=2)
    with serving(lambda request, _context: request) as target:
        found = loadgen.run(load, target)
    assert found.answered.count == 90
    assert [kind.count for kind in found.kinds] == [60, 30]
    assert found.unanswered == found.unsent == 0


def test_latency_in_an_open_loop_counts_from_the_moment_a_request_was_due(requests: Path) -> None:
    """A server that is stuck for a while delays all that come meanwhile, and that shows."""
    stuck = threading.Event()
    first = threading.Lock()

    def handler(request: bytes, _context: grpc.ServicerContext) -> bytes:
        if first.acquire(blocking=False):
            stuck.wait(0.2)
        stuck.wait(10)
        return request

    threading.Timer(0.25, stuck.set).start()
    at_s = np.linspace(0.05, 0.1, 20)
    with serving(handler) as target:
        found = loadgen.run(short(requests, at_s=at_s, drain_s=5.0), target)
    assert found.answered.count == 20
    assert found.answered.p50 > 50


def test_time_without_an_answer_is_told_where_it_is_asked_for(requests: Path) -> None:
    release = threading.Event()
    first = threading.Lock()

    def handler(request: bytes, _context: grpc.ServicerContext) -> bytes:
        if first.acquire(blocking=False):
            threading.Timer(0.2, release.set).start()
        release.wait(10)
        return request

    at_s = np.linspace(0.06, 0.1, 5)
    with serving(handler) as target:
        told = loadgen.run(short(requests, at_s=at_s, drain_s=5.0, stall_ms=150.0), target)
        release.set()
        untold = loadgen.run(short(requests, at_s=at_s, drain_s=5.0), target)
    (stall,) = told.stalls
    assert stall.ms >= 200
    assert stall.at_s == pytest.approx(0.06, abs=1e-3)
    assert stall.open == 5
    assert untold.stalls == []


def test_a_stall_is_the_machine_s_where_the_same_work_takes_longer_or_nothing_runs() -> None:
    own = Stall(at_s=1.0, ms=50.0, open=70, slowed=1.4, apart_ms=3.0)
    slow = own._replace(slowed=13.0)
    stopped = own._replace(slowed=0.0, apart_ms=48.0)
    assert [stall.of_machine for stall in (own, slow, stopped)] == [False, True, True]
    assert own_stalls([own, slow, stopped]) == 1


def test_requests_beyond_the_bound_are_not_sent(requests: Path) -> None:
    release = threading.Event()

    def handler(request: bytes, _context: grpc.ServicerContext) -> bytes:
        release.wait(10)
        return request

    at_s = np.linspace(0.06, 0.1, 10)
    with serving(handler) as target:
        load = short(requests, at_s=at_s, max_open=3, drain_s=0.1)
        found = loadgen.run(load, target)
        release.set()
    assert (found.unanswered, found.unsent) == (3, 7)


def test_what_has_no_answer_in_time_is_given_up_and_the_server_told(requests: Path) -> None:
    told = threading.Semaphore(0)

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        ended = threading.Event()
        context.add_callback(ended.set)
        ended.wait(10)
        told.release()
        return request

    at_s = np.linspace(0.06, 0.1, 5)
    with serving(handler) as target:
        found = loadgen.run(short(requests, at_s=at_s, timeout_ms=50.0), target)
        assert all(told.acquire(timeout=10) for _ in range(5))
    assert (found.ok, found.unanswered, found.held) == (0, 0, 0)
    assert found.statuses == {4: 5}
    assert found.expired.count == 5
    assert found.expired.p50 >= 50


def test_an_answer_after_the_deadline_is_none(requests: Path) -> None:
    """A server that knows of no deadline: the client still had none of its answers."""
    late = threading.Event()

    def handler(request: bytes, _context: grpc.ServicerContext) -> bytes:
        late.wait(0.1)
        return request

    with serving(handler) as target:
        found = loadgen.run(short(requests, in_flight=2, timeout_ms=20.0), target)
    assert found.ok == found.answered.count == 0
    assert found.expired.count > 0


def test_what_the_server_allows_no_stream_for_never_leaves(requests: Path) -> None:
    seen = threading.Semaphore(0)

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        ended = threading.Event()
        context.add_callback(ended.set)
        seen.release()
        ended.wait(10)
        return request

    load = short(requests, at_s=np.full(10, 0.06), connections=1, timeout_ms=100.0)
    with serving(handler, max_concurrent_streams=2) as target:
        found = loadgen.run(load, target)
    assert found.statuses == {4: 10}
    assert found.held == 8
    assert [seen.acquire(blocking=False) for _ in range(3)] == [True, True, False]


def test_what_waited_for_a_stream_leaves_with_the_time_that_is_left(requests: Path) -> None:
    left_s: list[float] = []
    busy = threading.Event()

    def handler(request: bytes, context: grpc.ServicerContext) -> bytes:
        left_s.append(context.time_remaining())
        busy.wait(0.1)
        return request

    load = short(requests, at_s=np.full(3, 0.06), connections=1, timeout_ms=30_000.0, drain_s=20)
    with serving(handler, max_concurrent_streams=1) as target:
        found = loadgen.run(load, target)
    assert found.answered.count == 3
    assert [left <= 30 - 0.1 * n for n, left in enumerate(left_s)] == [True] * 3


def test_a_connection_that_the_server_ends_is_opened_again(requests: Path) -> None:
    at_s = np.linspace(0.05, 0.349, 100)
    with serving(lambda request, _context: request, max_connection_age_ms=80) as target:
        found = loadgen.run(short(requests, at_s=at_s, timeout_ms=30_000.0, drain_s=20), target)
    assert found.reconnects > 0
    assert found.statuses.get(0, 0) > 50
    assert sum(found.statuses.values()) == 100


def test_http_1_answers_are_read_whole(tmp_path: Path) -> None:
    requests = messages.write(tmp_path / "requests", [KILOBYTE], raw=True)

    class Echo(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200 if self.path == "/x" else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """No news."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Echo) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = f"127.0.0.1:{server.server_port}"
        right = loadgen.run(short(requests, in_flight=2), target, path="/x", http1=True)
        wrong = loadgen.run(short(requests, in_flight=2), target, path="/y", http1=True)
        server.shutdown()
    assert right.statuses == {0: right.answered.count}
    assert wrong.statuses == {404: wrong.refused.count}


@pytest.mark.parametrize("target", ["192.0.2.1:80", "10.0.0.1:80", "0.0.0.0:80", "localhost:80"])
def test_nothing_but_loopback_is_loaded(requests: Path, target: str) -> None:
    with pytest.raises(BenchError, match="only 127"):
        loadgen.run(short(requests, in_flight=1), target)


def test_a_server_that_is_not_there_is_an_error(requests: Path) -> None:
    with pytest.raises(BenchError, match="refused"):
        loadgen.run(short(requests, in_flight=1), "127.0.0.1:1")


def test_time_is_bounded(requests: Path) -> None:
    load = Load(requests, in_flight=1, duration_s=3600)
    with pytest.raises(BenchError, match="600 s"):
        loadgen.run(load, "127.0.0.1:1")
