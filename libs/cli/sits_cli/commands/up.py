"""`sits up`: the whole mesh in the foreground until Ctrl-C."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.text import Text

from sits_cli import front, ports
from sits_cli.client import CliError
from sits_cli.doctor import network, settings
from sits_cli.doctor.finding import Environ, Level
from sits_cli.mesh import Mesh, MeshFailed, Plan, ServiceState
from sits_cli.options import Json, front_place
from sits_cli.output import (
    bad,
    console,
    duration,
    good,
    literal,
    print_drawn,
    print_json_line,
    table,
)
from sits_cli.supervisor import Change, Event

MAX_EXECUTORS = 16
READY_TIMEOUT_S = 60.0
WATCH_S = 0.2
HARMLESS = ("unloaded", "no executor that serves it is connected")
"""Reasons why a model is unavailable that are no fault of the model."""
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def up(
    executors: Annotated[
        int,
        typer.Option("--executors", "-n", metavar="N", min=1, max=MAX_EXECUTORS, help="how many"),
    ] = ports.EXECUTORS,
    models: Annotated[
        Path,
        typer.Option(
            envvar="SITS_EXECUTOR_MODEL_REPOSITORY", metavar="DIR", help="the model repository"
        ),
    ] = Path("models"),
    log_dir: Annotated[
        Path, typer.Option(metavar="DIR", help="one log file for each service")
    ] = Path(".sits/logs"),
    no_redis: Annotated[
        bool, typer.Option("--no-redis", help="neither SITS_REDIS_URL nor a private Redis")
    ] = False,
    timeout_s: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=1, help="seconds until all must be ready"),
    ] = READY_TIMEOUT_S,
    as_json: Json = False,
) -> None:
    """Run the mesh on this machine: all services, and Redis unless SITS_REDIS_URL names one."""
    require_models(models)
    require_sound(os.environ if not no_redis else {**os.environ, "SITS_REDIS_URL": ""})
    plan = Plan(
        addresses=ports.configured(executors, os.environ),
        models=models,
        log_dir=log_dir,
        redis_url=None if no_redis else os.environ.get("SITS_REDIS_URL"),
        private_redis=not no_redis,
    )
    ports.require_free(plan.addresses)
    report = Report(log_dir, as_json=as_json)
    mesh = Mesh(plan, report.heard)
    with stopped_by_signal(mesh) as stop:
        run(mesh, report, stop, timeout_s)


class Report:
    """Tells what happens to the services: lines for people, or JSON lines."""

    def __init__(self, log_dir: Path, *, as_json: bool) -> None:
        self._log_dir, self._as_json = log_dir, as_json
        self._seen: set[str] = set()
        # Lines and the spinner share one console, or they would overwrite each other.
        self.console = console(stderr=as_json)
        self.stopping = False
        self.given_up: Event | None = None

    def heard(self, event: Event) -> None:
        """Called by the supervisor, from its thread."""
        if event.change is Change.GAVE_UP:
            self.given_up = event
        first_start = event.change is Change.STARTED and event.name not in self._seen
        self._seen.add(event.name)
        if self._as_json:
            print_json_line({"event": event.change.value, "service": event.name, "pid": event.pid,
                             "status": event.status, "back_in_s": event.back_in_s})  # fmt: skip
        elif not first_start and not self.stopping:
            self._say(self._line(event))

    def _say(self, text: str) -> None:
        self.console.print(text, soft_wrap=True)

    def _line(self, event: Event) -> str:
        if event.change is Change.STARTED:
            return f"[bold]{event.name}[/] started again (pid {event.pid})"
        log = literal(str(self._log_dir / f"{event.name}.log"))
        again = f"; starts again in {duration(event.back_in_s)}" if event.back_in_s else ""
        return f"[bold red]{event.name}[/] ended ({ending(event.status)}){again}; log: {log}"

    def note(self, text: str) -> None:
        """For people only: programs hear of each service."""
        if not self._as_json:
            self._say(text)

    def ready(self, mesh: Mesh, took_s: float) -> None:
        states = mesh.states()
        if self._as_json:
            print_json_line({"event": "ready", "services": [asdict(s) for s in states]})
            return
        self._say(f"\nThe mesh is ready after {duration(took_s)}.\n")
        broken, _ = models_of(mesh.addresses.front)
        columns = ("service", "address", "state", "pid", "log")
        print_drawn(table(columns, map(_row, states)), self.console)
        self._say("".join(f"\n[bold red]{literal(text)}[/]" for text in broken))
        self._say(
            f"Clients: [bold]{literal(mesh.addresses.front)}[/] (Open Inference Protocol, gRPC)."
            "  Try `sits models`, `sits status`.  Ctrl-C stops.\n"
        )


def run(mesh: Mesh, report: Report, stop: threading.Event, timeout_s: float) -> None:
    """Start, wait, watch, stop. Raises `CliError` when the mesh cannot go on."""
    try:
        mesh.start()
        took_s = wait_ready(mesh, report, stop, timeout_s)
        if not stop.is_set():
            report.ready(mesh, took_s)
        while not stop.wait(WATCH_S):
            if report.given_up is not None:
                raise CliError(mesh.obituary(report.given_up.name))
    except MeshFailed as error:
        raise CliError(str(error)) from None
    finally:
        report.stopping = True
        report.note("stopping, a second Ctrl-C kills")
        mesh.stop()
        report.note("stopped")


def require_sound(environ: Environ) -> None:
    """What is sure to fail should fail at once, and say why. Raises `CliError`."""
    for found in (*settings.wrong(environ), *network.redis(environ)):
        if found.level is Level.PROBLEM and found.area in ("settings", "redis"):
            raise CliError(f"{found.text}: {found.do}")


def require_models(repository: Path) -> None:
    """Raises `CliError` when there is nothing to serve: the mesh would never become ready."""
    if not repository.is_dir() or not any(entry.is_dir() for entry in repository.iterdir()):
        raise CliError(
            f"no models in {repository.absolute()}: `make models` fetches the demo's, "
            "or name another repository with --models"
        )


def wait_ready(mesh: Mesh, report: Report, stop: threading.Event, timeout_s: float) -> float:
    """Seconds it took. Raises `CliError` as soon as there is no hope for any model."""

    def progress(waiting: list[str]) -> None:
        spinner.update(f"waiting for {', '.join(waiting)}")
        if waiting == ["preprocess"]:
            broken, others = models_of(mesh.addresses.front)
            if broken and not others:
                raise CliError("; ".join(broken))

    with report.console.status("starting") as spinner:
        return mesh.wait_ready(timeout_s, progress, stop)


def models_of(address: str) -> tuple[list[str], int]:
    """What is wrong with the models that cannot be served, and how many others there are."""
    try:
        with front.connected(front_place(address)) as client:
            entries = client.get_model_repository_index().models
    except CliError:
        return [], 0  # not even that works yet
    broken = [
        f"model {entry.name} version {entry.version} cannot be served: {entry.reason}"
        for entry in entries
        if entry.state == "UNAVAILABLE" and entry.reason not in HARMLESS
    ]
    return broken, len(entries) - len(broken)


@contextmanager
def stopped_by_signal(mesh: Mesh) -> Iterator[threading.Event]:
    """Set by the first Ctrl-C, SIGTERM or hang-up; the second kills what still runs."""
    stop = threading.Event()

    def handle(_number: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            mesh.kill_all()
        stop.set()

    before = {number: signal.signal(number, handle) for number in STOP_SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def ending(status: int | None) -> str:
    if status is None:
        return "gone"
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"status {status}"


def _row(state: ServiceState) -> tuple[str | Text, ...]:
    ready = good("ready") if state.ready else bad("not ready")
    return state.name, state.address, ready, str(state.pid or "–"), state.log
