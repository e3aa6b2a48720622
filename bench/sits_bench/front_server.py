"""The front door alone, with an engine that echoes at once: `python -m sits_bench.front_server`.

Everything of the front door is there, checks, metrics and traces; nothing is behind it.
"""

import threading
from collections.abc import Callable, Sequence
from typing import NoReturn

from sits_core.errors import SitsError, Unavailable
from sits_core.metrics import ProcessRegistry
from sits_core.process import run
from sits_core.telemetry import open_tracer
from sits_preprocess.fake_engine import model
from sits_preprocess.front import build
from sits_preprocess.gates import Look
from sits_preprocess.repository import Repository
from sits_preprocess.request import Answer, Answered, Request, Run
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.testing import FakeCatalog

Sink = Callable[[Sequence[Answered]], None]

ECHO = model("echo", [("INPUT", "FP32", [256])], [("OUTPUT", "FP32", [256])], max_batch_size=32)


class EchoEngine:
    """An `inference.Engine`."""

    degraded = False

    def __init__(self) -> None:
        self.catalog = FakeCatalog(ECHO)
        self._sink: Sink = lambda _answered: None

    def deliver_to(self, sink: Sink) -> None:
        self._sink = sink

    def refusing(self, now: int) -> bool:
        return False

    def foresee(self, request: Request, now: int) -> SitsError | None:
        return None

    def look(self, request: Request, now: int) -> Look:
        return Look(None)

    def turned_away(self, error: SitsError, requests: int, now: int) -> None:
        """Nobody asks."""

    def submit(self, requests: Sequence[Request]) -> None:
        self._sink([(request, echo(request)) for request in requests])

    def cancel(self, request: Request) -> None:
        """It has been answered already."""


def echo(request: Request) -> Answer:
    outputs = tuple([tensor._replace(name="OUTPUT") for tensor in request.inputs])
    return Answer(outputs, run=Run(rows=request.rows))


def serve(settings: PreprocessSettings, stop: threading.Event) -> None:
    registry, engine = ProcessRegistry(), EchoEngine()
    with open_tracer("preprocess", settings, registry, "front-alone") as tracer:
        repository = Repository(engine.catalog, _no_dispatcher)
        front = build(settings, engine, repository, tracer, registry)
        front.start()
        stop.wait()
        front.stop(1.0)


def _no_dispatcher() -> NoReturn:
    raise Unavailable("the front door alone has no dispatcher")


if __name__ == "__main__":
    run("preprocess", PreprocessSettings, serve)
