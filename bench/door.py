"""What refusing one request costs the front door's own code, by the processor time of its thread.

`NativeTransport` takes calls in as the library hands them over, and everything up to the
refusal is real; the library itself and what is behind the gate are not there. "looked at one
by one" is what happens where the door cannot judge: a call and a request are made of each, and
the gate is asked about it before its message is read.
"""

import statistics
import time
from typing import Any, Final, NoReturn

from prometheus_client import CollectorRegistry

from sits_bench import machine
from sits_bench.onnx_models import MLP
from sits_bench.show import finish, main, options
from sits_core.errors import Unavailable
from sits_core.tracing import Tracer
from sits_preprocess.fake_engine import FakeEngine, model
from sits_preprocess.front import build
from sits_preprocess.gates import Look
from sits_preprocess.repository import Repository
from sits_preprocess.settings import PreprocessSettings
from sits_preprocess.transport.native import NativeTransport
from sits_scheduling.gate import Needs
from sits_sim.figures import Figure, Report, at_most, plain

LEFT_S: Final = 0.009
NEEDED: Final = Needs(50e6, 40e6, 1e5)
LATE: Final = Unavailable("too late", reason="DEADLINE_UNREACHABLE", retry_after_ms=3)
TOGETHER: Final = (16, 64, 512)
WARM_UP: Final = 20


class Library:
    """As much of the library as answers are given to."""

    def fail(self, *_answer: object) -> None: ...


def transport(engine: FakeEngine) -> NativeTransport:
    settings = PreprocessSettings(preprocess_bind="127.0.0.1:0", preprocess_transport="native")
    repository = Repository(engine.catalog, _no_dispatcher)
    front = build(settings, engine, repository, Tracer("door", 1000, 0.0), CollectorRegistry())
    assert isinstance(front.transport, NativeTransport)  # noqa: S101 - as was asked for
    return front.transport


def cost_us(front: Any, message: bytes, together: int, rounds: int) -> float:
    """Of each call, when so many come at once."""
    details = ((), "ipv4:127.0.0.1:1", LEFT_S)
    library, found = Library(), []
    for _ in range(WARM_UP + rounds):
        events = [(0, n, 0, bytes(bytearray(message)), "peer", details) for n in range(together)]
        started = time.thread_time_ns()
        front._take(library, events)
        found.append((time.thread_time_ns() - started) / together / 1e3)
    return statistics.median(found[WARM_UP:])


def report(rounds: int) -> Report:
    engine = FakeEngine(
        model("mlp", [("INPUT", "FP32", [64])], [("OUTPUT", "FP32", [10])], max_batch_size=32)
    )
    front, message = transport(engine), MLP.inference().grpc()
    figures: list[Figure] = []
    engine.looks = Look(LATE, NEEDED)
    for together in TOGETHER:
        text = f"refused at the door, {together} together"
        figures.append(at_most(text, cost_us(front, message, together, rounds), "µs", 10.0))
    front._turns = []
    engine.looks, engine.foreseen = None, LATE
    figures.append(plain("looked at one by one", cost_us(front, message, 64, rounds), "µs"))
    return Report({**machine.describe(), "rounds": rounds}, figures, [])


def _no_dispatcher() -> NoReturn:
    raise Unavailable("there is no dispatcher")


def body() -> int:
    given = options(__doc__).parse_args()
    return finish("door", report(200 if given.quick else 2000), given)


if __name__ == "__main__":
    main(body)
