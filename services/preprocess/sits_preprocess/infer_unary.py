"""`ModelInfer`: calls that came in together are read, checked and queued together."""

from concurrent.futures import Executor
from functools import partial

from sits_core.clock import now_ns
from sits_core.errors import SitsError
from sits_preprocess.access import EXPLAIN_HEADER
from sits_preprocess.door import Door
from sits_preprocess.inference import Ask, Inference
from sits_preprocess.oip.encoding import ResponseEncoder
from sits_preprocess.oip.known import Beginnings
from sits_preprocess.oip.reading import OipMessage
from sits_preprocess.oip.result import Result
from sits_preprocess.transport.call import Arrivals, Call, run_batched

MAX_HEADER_CHARS = 4000

SLOW_BYTES = 256 << 10
"""Messages from this size on are read by other threads: no small one waits behind them."""


class InferUnary:
    """Small requests are read on the transport's own thread, large ones by `readers`."""

    def __init__(self, inference: Inference, readers: Executor) -> None:
        self._inference, self._readers = inference, readers
        self._encode, self._beginnings = ResponseEncoder(), Beginnings()
        self.door = Door(inference, self.take)

    def take(self, arrivals: Arrivals, foreseen: bool = False) -> None:
        """`foreseen`: the door has let them in."""
        start = partial(self._start, foreseen=foreseen)
        small = [arrival for arrival in arrivals if len(arrival[0]) < SLOW_BYTES]
        if len(small) < len(arrivals):
            for arrival in arrivals:
                if len(arrival[0]) >= SLOW_BYTES:
                    self._readers.submit(run_batched, start, [arrival])
        if small:
            start(small)

    def _start(self, arrivals: Arrivals, *, foreseen: bool) -> None:
        """The calls' keys first: without a good one nothing of the message is looked at."""
        asks: list[Ask] = []
        calls: list[Call] = []
        for message, call in arrivals:
            try:
                origin = self._inference.admission.origin(call)
            except SitsError as error:
                call.fail(error)
                continue
            asks.append(
                Ask(
                    OipMessage(message, self._beginnings),
                    origin,
                    len(message),
                    partial(self._respond, call),
                )
            )
            calls.append(call)
        requests = self._inference.start(asks, now_ns(), foreseen=foreseen)
        for call, request in zip(calls, requests, strict=True):
            if not request.answered:
                call.on_cancel(partial(self._inference.cancel, request))

    def _respond(self, call: Call, result: Result) -> None:
        if result.error is not None:
            call.fail(result.error)
        elif result.explanation and EXPLAIN_HEADER in call.metadata:
            why = (EXPLAIN_HEADER, as_header(result.explanation))
            call.respond(self._encode(result._replace(explanation="")), (why,))
        else:
            call.respond(self._encode(result))


def as_header(text: str) -> str:
    """Metadata is printable ASCII, and clients take 8 KiB of it in all."""
    return text.encode("ascii", "backslashreplace").decode()[:MAX_HEADER_CHARS]
