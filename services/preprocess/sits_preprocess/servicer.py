"""The front port: one route for every method, of the Open Inference Protocol and of others."""

from collections.abc import Callable
from concurrent.futures import Executor

from sits_preprocess.health import Health
from sits_preprocess.infer_batches import InferBatches
from sits_preprocess.infer_stream import InferStream
from sits_preprocess.infer_unary import SLOW_BYTES, InferUnary
from sits_preprocess.inference import Inference
from sits_preprocess.methods import Methods
from sits_preprocess.reflection import PATH as REFLECTION
from sits_preprocess.reflection import Reflection
from sits_preprocess.transport.call import Routes, StreamCall, StreamFactory

BATCHES = "sits.v1.Inference"
HEALTH = "grpc.health.v1.Health"
OIP = "inference.GRPCInferenceService"


class Servicer:
    """`readers` read large messages, so that no small one waits behind them."""

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
        self._unary = InferUnary(inference, readers)
        self.streams: set[InferStream | InferBatches] = set()

    def routes(self) -> Routes:
        unary = {f"/{OIP}/{name}": call for name, call in self._methods.handlers().items()}
        unary[f"/{HEALTH}/Check"] = self._health.check
        streams: dict[str, StreamFactory] = {
            f"/{OIP}/ModelStreamInfer": self.model_stream_infer,
            f"/{BATCHES}/InferBatches": self.infer_batches,
            f"/{HEALTH}/Watch": self._health.watch,
        }
        if self._reflection is not None:
            streams[REFLECTION] = self._reflection.open
        infer = f"/{OIP}/ModelInfer"
        return Routes({infer: self._unary.take}, unary, streams, {infer: self._unary.door.turn})

    def model_stream_infer(self, call: StreamCall) -> InferStream:
        stream = InferStream(call, self._inference, self._defer, self.streams.discard)
        self._opened(stream)
        return stream

    def infer_batches(self, call: StreamCall) -> InferBatches:
        stream = InferBatches(call, self._inference, self._defer, self.streams.discard)
        self._opened(stream)
        return stream

    def _opened(self, stream: InferStream | InferBatches) -> None:
        self.streams.add(stream)
        if self._inference.draining:  # too late for `drain` to see it
            stream.drain()

    def leave(self) -> None:
        """Let those who look at its health send their next requests elsewhere."""
        self._inference.leave()
        self._health.refresh()

    def drain(self) -> None:
        """No new requests; streams end once what they brought is answered."""
        self._inference.drain()
        self._health.refresh()
        for stream in list(self.streams):
            stream.drain()

    def _defer(self, size_bytes: int, step: Callable[[], None]) -> None:
        if size_bytes < SLOW_BYTES:
            step()
        else:
            self._readers.submit(step)
