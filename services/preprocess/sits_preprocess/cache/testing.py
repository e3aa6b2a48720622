"""The response cache over a fake engine, asked without a front port, for tests."""

from collections.abc import Callable, Sequence
from typing import Any

from prometheus_client import CollectorRegistry

from sits_core.clock import now_ns
from sits_core.testing import MemoryAnswers, wait_until
from sits_preprocess.cache.engine import CachedEngine
from sits_preprocess.cache.memory import Memory
from sits_preprocess.cache.metrics import CacheMetrics
from sits_preprocess.cache.rules import Rules
from sits_preprocess.cache.shared import Shared
from sits_preprocess.catalog import Model
from sits_preprocess.fake_engine import FakeEngine, model
from sits_preprocess.oip.signature import Signatures
from sits_preprocess.request import Answer, Answered, Request, TensorData
from sits_preprocess.statistics import Statistics

INPUT, OUTPUT = [("INPUT0", "FP32", [-1])], [("OUTPUT0", "FP32", [-1])]


def cached(name: str = "m", content: bytes = b"first", **parameters: str) -> Model:
    return model(name, INPUT, OUTPUT, cached=content, parameters=parameters)


class Cache:
    """A cache over a fake engine, asked without a front port."""

    def __init__(
        self, *models: Model, store: MemoryAnswers | None = None, max_bytes: int = 1 << 20,
        redis_bytes: int = 1 << 20, wait_s: float = 30.0, clock: Callable[[], int] = now_ns,
    ) -> None:  # fmt: skip
        self.engine = FakeEngine(*(models or (cached(),)))
        self.registry, self.statistics = CollectorRegistry(), Statistics()
        memory = Memory(max_bytes, clock)
        metrics = CacheMetrics(self.registry, memory)
        shared = Shared(store, redis_bytes, wait_s, metrics) if store is not None else None
        self.memory, self.shared, self.signatures = memory, shared, Signatures()
        self.cache = CachedEngine(
            self.engine, Rules(60.0, clock), memory, shared, self.statistics, metrics, clock
        )
        self.answers: dict[Request, Answer] = {}
        self.cache.deliver_to(self.take)
        self.cache.start()

    def take(self, answered: Sequence[Answered]) -> None:
        for request, answer in answered:
            if request in self.answers:
                raise RuntimeError(f"answered twice: {request.id}")
            self.answers[request] = answer

    def ask(self, data: bytes = b"abcd", name: str = "m", **fields: Any) -> Answer:
        return self.wait(self.send(data, name, **fields))

    def send(self, data: bytes = b"abcd", name: str = "m", **fields: Any) -> Request:
        request = self.request(data, name, **fields)
        self.cache.submit([request])
        return request

    def request(self, data: bytes = b"abcd", name: str = "m", **fields: Any) -> Request:
        known = self.engine.catalog.find(name, "1")
        made = Request(
            lambda _: None, now_ns(), tenant="gold", model=name, version="1", rows=1,
            signature=self.signatures.of(known),
            inputs=(TensorData("INPUT0", "FP32", (len(data) // 4,), data),),
        )  # fmt: skip
        for field, value in fields.items():
            setattr(made, field, value)
        return made

    def wait(self, request: Request) -> Answer:
        wait_until(lambda: request in self.answers, what="an answer")
        return self.answers[request]

    @property
    def runs(self) -> int:
        return len(self.engine.taken)

    def counted(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(name, labels) or 0.0

    def unkept(self, reason: str) -> float:
        return self.counted("sits_response_cache_unkept_total", reason=reason)


def hit(answer: Answer) -> str:
    return answer.run.cached
