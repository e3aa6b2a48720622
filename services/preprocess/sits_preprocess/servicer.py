"""The front port: one route for every method, of the Open Inference Protocol and of others."""

from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial

from sits_preprocess.health import Health
from sits_preprocess.infer_batches import InferBatches
from sits_preprocess.infer_stream import InferStream
from sits_preprocess.inference import Inference
from sits_preprocess.methods import Methods
from sits_preprocess.oip.reading import draft_of, parse
from sits_preprocess.oip.result import Result
from sits_preprocess.oip.writing import response_of
from sits_preprocess.reflection import PATH as REFLECTION
from sits_preprocess.reflection import Reflection
from sits_preprocess.transport.call import Call, Routes, StreamCall, StreamFactory, run_unary

BATCHES = "sits.v1.Inference"
HEALTH = "grpc.health.v1.Health"
OIP = "inference.GRPCInferenceService"
SLOW_BYTES = 256 << 10
"""Messages from this size on are read by other threads: no small one waits behind them."""


class Servicer:
    """Small requests are read on the transport's own thread, large ones by `readers`."""

    def __init__(
        self,
        inference: Inference,
        methods: Methods,
        health: Health,
        reflection: Reflection | None,
        readers: Executor,
    ) -> None:
        self._inference, self._methods, self._reflection = inference, methods, reflection
        self._health, self._readers = health, readers
        self.streams: set[InferStream | InferBatches] = set()

    def routes(self) -> Routes:
        unary = {f"/{OIP}/{name}": call for name, call in self._methods.handlers().items()}
        unary[f"/{OIP}/ModelInfer"] = self.model_infer
        unary[f"/{HEALTH}/Check"] = self._health.check
        streams: dict[str, StreamFactory] = {
            f"/{OIP}/ModelStreamInfer": self.model_stream_infer,
            f"/{BATCHES}/InferBatches": self.infer_batches,
            f"/{HEALTH}/Watch": self._health.watch,
        }
        if self._reflection is not None:
            streams[REFLECTION] = self._reflection.open
        return Routes(unary, streams)

    def model_infer(self, message: bytes, call: Call) -> None:
        self._defer(len(message), partial(run_unary, self._infer, message, call))

    def model_stream_infer(self, call: StreamCall) -> InferStream:
        stream = InferStream(call, self._inference, self._defer, self.streams.discard)
        self.streams.add(stream)
        return stream

    def infer_batches(self, call: StreamCall) -> InferBatches:
        stream = InferBatches(call, self._inference, self._defer, self.streams.discard)
        self.streams.add(stream)
        return stream

    def drain(self) -> None:
        """No new requests; streams end once what they brought is answered."""
        self._inference.drain()
        self._health.refresh()
        for stream in list(self.streams):
            stream.drain()

    def _infer(self, message: bytes, call: Call) -> None:
        origin = self._inference.admission.origin(call)
        exchange = self._inference.start(
            lambda: draft_of(parse(message)), origin, len(message), partial(_respond, call)
        )
        call.on_cancel(exchange.cancel)

    def _defer(self, size_bytes: int, step: Callable[[], None]) -> None:
        if size_bytes < SLOW_BYTES:
            step()
        else:
            self._readers.submit(step)


def _respond(call: Call, result: Result) -> None:
    if result.error is not None:
        call.fail(result.error)
    else:
        call.respond(response_of(result).SerializeToString())
