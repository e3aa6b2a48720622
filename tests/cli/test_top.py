"""`sits top`: the mesh in the terminal, from the dispatcher's admin port."""

import json
import os
import pty
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from sits_cli.top_view import bar, ms, number
from sits_core.testing import wait_until
from sits_core.tls import ServerTls, TlsFiles
from sits_dispatcher import admin_models as api

Sits = Callable[..., Any]
Answers = list[tuple[int, bytes]]


def live(window_s: float = 5.0, **changes: object) -> api.Live:
    """A busy mesh as the dispatcher tells of it."""
    executor = api.Executor(
        id="executor-node-1-abc", host="h", device="GPU-1", address="10.0.0.1:8020",
        transport="ring+shm", draining=False, batches_in_flight=3, rows_in_flight=24,
        batches_total=1000, parallel=2, slots=8,
    )  # fmt: skip
    state = api.State(
        version="0.1.0", started_unix_ms=0, strategy="topo_aware", strategies=["fifo"],
        model_strategies={}, redis=api.Redis(configured=True, connected=True, age_s=0.1),
        topology_age_s=3.25, executors=[executor], fronts=[],
        models=[api.ServedModel(name="mlp", version="1", state="ready", reason="",
                                strategy="least_loaded")],
        governance=api.Governance(acts=True, level="degrade", scale_factor=1.5,
                                  shed_tiers=["bronze"], signals=[], steps=[]),
    )  # fmt: skip
    whole = api.Live(
        taken_unix_ms=90_000, window_s=window_s, topology_revision="r", state=state,
        traffic=api.Traffic(requests_per_s=1234.5, outcomes_per_s={"OK": 1200.5, "INTERNAL": 34.0},
                            p50_ms=4.25, p99_ms=120.5, rows_per_s=5000.0, batches_per_s=400.0),
        queues=api.Queues(front_requests=7, pending_batches=2, in_flight_batches=3,
                          in_flight_rows=24),
        batching=api.Batching(
            reasons=[api.CloseReason(reason="rows", total=9, per_s=1.5),
                     api.CloseReason(reason="idle", total=90, per_s=30.0),
                     api.CloseReason(reason="bytes", total=0, per_s=0.0)],
            rows_per_batch=12.5),
        tenants=[api.Tenant(tenant="gold", requests_per_s=1000.0, failed_per_s=34.0, p50_ms=4.0,
                            p99_ms=118.0, slo_ms=200.0, in_slo=0.998)],
        models=[api.ModelRate(model="mlp", batches_per_s=400.0, rows_per_s=5000.0)],
        answered_per_s={"executor-node-1-abc": 400.0}, silent_fronts=["10.0.0.9:8003"],
        moved=[],
    )  # fmt: skip
    return whole.model_copy(update=changes)


class Admin:
    """Answers every GET with the next of `answers`, the last one again and again."""

    def __init__(self) -> None:
        self.answers: Answers = []
        self.asked: list[dict[str, str]] = []

    def answer(self, headers: dict[str, str]) -> tuple[int, bytes]:
        self.asked.append(headers)
        return self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]


Serve = Callable[..., str]


@pytest.fixture
def admin() -> Admin:
    return Admin()


@pytest.fixture
def serve(admin: Admin) -> Iterator[Serve]:
    """`serve(live(), …)` → the address that answers with these."""
    with ExitStack() as stack:

        def start(*answers: api.Live | tuple[int, bytes], tls: ServerTls | None = None) -> str:
            for each in answers:
                done = (
                    (200, each.model_dump_json().encode()) if isinstance(each, api.Live) else each
                )
                admin.answers.append(done)
            server = ThreadingHTTPServer(("127.0.0.1", 0), handler(admin))
            if tls is not None:
                server.socket = tls.context().wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, daemon=True).start()
            stack.callback(server.server_close)
            stack.callback(server.shutdown)
            return f"127.0.0.1:{server.server_port}"

        yield start


def handler(admin: Admin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = admin.answer(dict(self.headers))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            pass

    return Handler


def test_one_look_shows_load_queues_rates_and_latencies(sits: Sits, serve: Serve) -> None:
    outcome = sits("top", "--once", "--admin", serve(live()))
    assert outcome.status == 0
    shown = " ".join(outcome.out.split())
    for part in (
        "topo_aware", "Redis connected", "topology 3.25 s old", "1 executor, 0 front doors",
        "requests/s 1,234", "failed/s 34", "p50 4.25 ms", "p99 120 ms", "waiting 7",
        "executor-node-1-abc GPU-1 ██████████ 3/2 24 400 ring+shm ready",
        "gold 1,000 4.00 ms 118 ms 200 ms 99.8 % 34", "mlp 1 ready least_loaded 400 5,000",
        "idle 30/s, rows 1.5/s (12 rows each)", "no figures from 10.0.0.9:8003",
    ):  # fmt: skip
        assert part in shown, part


def test_who_looks_first_waits_for_rates(sits: Sits, serve: Serve, admin: Admin) -> None:
    outcome = sits("top", "--once", "--json", "--admin", serve(live(0.0), live(1.5)))
    assert json.loads(outcome.out)["window_s"] == 1.5
    assert len(admin.asked) == 2


def test_json_is_what_the_dispatcher_said(sits: Sits, serve: Serve) -> None:
    outcome = sits("top", "--json", "--admin", serve(live()))
    assert json.loads(outcome.out) == json.loads(live().model_dump_json())


def test_an_idle_mesh_has_dashes_for_what_is_not_known(sits: Sits, serve: Serve) -> None:
    nothing = api.Traffic(requests_per_s=None, outcomes_per_s={}, p50_ms=None, p99_ms=None,
                          rows_per_s=None, batches_per_s=None)  # fmt: skip
    idle = live(traffic=nothing, silent_fronts=[],
                batching=api.Batching(reasons=[], rows_per_batch=None))  # fmt: skip
    outcome = sits("top", "--once", "--admin", serve(idle))
    assert "requests/s –   failed/s –   p50 –" in outcome.out
    assert "no figures" not in outcome.out


def test_the_token_of_the_environment_is_sent(
    sits: Sits, serve: Serve, admin: Admin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SITS_ADMIN_TOKEN", "hunter2")
    assert sits("top", "--once", "--admin", serve(live())).status == 0
    assert admin.asked[0]["authorization"] == "Bearer hunter2"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((401, b'{"error": "this call needs the admin token", "do": "send it"}'),
         "this call needs the admin token: send it"),
        ((404, b"<html>nginx</html>"), "is no dispatcher's admin port (HTTP status 404)"),
        ((200, b"<html>hello</html>"), "name its admin port with --admin"),
    ],
)  # fmt: skip
def test_what_is_answered_instead_is_said(
    sits: Sits, serve: Serve, answer: tuple[int, bytes], said: str
) -> None:
    outcome = sits("top", "--once", "--admin", serve(answer))
    assert (outcome.status, outcome.out) == (1, "")
    assert said in outcome.err


INTERRUPTIBLE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("sits_cli", run_name="__main__")
"""
"""`sits`, also where tests run in the background of a shell, which has Ctrl-C ignored there.
`preexec_fn` would do, too, but forks a process with threads of gRPC."""


class Terminal:
    """`sits` on a terminal of its own, and all that it showed."""

    def __init__(self, *arguments: str) -> None:
        self.shown = b""
        self._fd, inner = pty.openpty()
        self._process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTIBLE, *arguments],
            stdin=inner, stdout=inner, stderr=inner,
            env=os.environ | {"TERM": "xterm", "COLUMNS": "140", "LINES": "40"},
        )  # fmt: skip
        os.close(inner)

    def shows(self, text: str) -> bool:
        readable, _, _ = select.select([self._fd], [], [], 0)
        if readable:
            self.shown += os.read(self._fd, 1 << 16)
        return text.encode() in self.shown

    def interrupt(self) -> int:
        """Ctrl-C; the exit status."""
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(60)
        os.close(self._fd)
        return status


def test_on_a_terminal_it_follows_the_mesh_until_ctrl_c(serve: Serve) -> None:
    changed = live(silent_fronts=["10.9.9.9:8003"])
    address = serve(live(), changed, (503, b'{"error": "going away", "do": "come back"}'))
    terminal = Terminal("top", "--admin", address)
    for text in ("executor-node-1-abc", "no figures from 10.9.9.9:8003",
                 "going away: come back", "Waiting for it"):  # fmt: skip
        wait_until(lambda text=text: terminal.shows(text), 60, f"{text!r} on the terminal")
    assert terminal.interrupt() == 130


def test_nobody_there_says_what_to_do(sits: Sits) -> None:
    outcome = sits("top", "--once", "--admin", "127.0.0.1:1")
    assert outcome.status == 1
    assert "start a mesh with `sits up`" in outcome.err


@pytest.mark.parametrize("address", ["localhost", ":80", "host:port"])
def test_an_address_that_is_none_is_wrong_usage(sits: Sits, address: str) -> None:
    assert sits("top", "--once", "--admin", address).status == 2


def test_over_mutual_tls(
    sits: Sits, serve: Serve, make_authority: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = make_authority()
    cert, key = authority.issue("server", "sits-mesh")
    address = serve(live(), tls=ServerTls(TlsFiles(cert, key, str(authority.file))))
    monkeypatch.setenv("SITS_TLS_CA_FILE", str(authority.file))
    monkeypatch.setenv("SITS_TLS_SERVER_NAME", "sits-mesh")
    assert sits("top", "--once", "--admin", address).status == 1  # no certificate of our own
    for variable, path in zip(("CERT", "KEY"), authority.issue("client"), strict=True):
        monkeypatch.setenv(f"SITS_TLS_{variable}_FILE", path)
    assert sits("top", "--once", "--admin", address).status == 0
    monkeypatch.setenv("SITS_TLS_SERVER_NAME", "somebody-else")
    assert sits("top", "--once", "--admin", address).status == 1


@pytest.mark.parametrize(
    ("load", "cells", "style"), [(0.0, 0, "green"), (0.5, 5, "green"), (1.0, 10, "green"),
                                 (1.5, 10, "yellow")]
)  # fmt: skip
def test_a_full_bar_is_all_that_runs_at_once(load: float, cells: int, style: str) -> None:
    drawn = bar(load)
    assert drawn.plain.count("█") == cells
    assert {span.style for span in drawn.spans if span.end <= cells} <= {style}


def test_numbers_are_short() -> None:
    assert [number(v) for v in (None, 0, 0.034, 1.26, 34.0, 1234.5)] == [
        "–", "0", "0.034", "1.3", "34", "1,234",
    ]  # fmt: skip
    assert [ms(v) for v in (None, 0.05, 12.34, 1500.0)] == ["–", "50.0 µs", "12.3 ms", "1.50 s"]


def test_a_pipe_gets_one_picture_whatever_colours_it_is_to_have(
    sits: Sits, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    outcome = sits("top", "--admin", serve(live()))
    assert outcome.status == 0
    assert len(outcome.out) < 20_000
