"""A fake engine, and models with tensors, for tests of the front port."""

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from sits_core.errors import Cancelled, Internal, SitsError
from sits_preprocess.catalog import Model
from sits_preprocess.gates import Look
from sits_preprocess.request import Answer, Answered, ParameterValue, Request, Run, TensorData
from sits_preprocess.testing import FakeCatalog
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.oip.model_config_pb2 import DataType, ModelConfig
from sits_protos.v1.link_pb2 import ModelState

Spec = tuple[str, str, Sequence[int]]
"""Name, datatype and dims of a tensor, dims without the batch dimension."""

Behaviour = Callable[[Request], Sequence[TensorData]]
DATATYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
    "FP16", "FP32", "FP64", "BF16", "BYTES",
)  # fmt: skip


def model(
    name: str,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    *,
    version: str = "1",
    max_batch_size: int = 0,
    optional: Sequence[str] = (),
    decoupled: bool = False,
    state: ModelState.ValueType = ModelState.MODEL_STATE_READY,
    labels: Mapping[str, tuple[str, ...]] | None = None,
    cached: bytes = b"",
    parameters: Mapping[str, str] | None = None,
) -> Model:
    """A model with tensors. `cached` is its content, where its answers are kept."""
    lead = [-1] if max_batch_size else []
    metadata = ModelMetadataResponse(name=name, versions=[version], platform="fake")
    config = ModelConfig(name=name, max_batch_size=max_batch_size)
    config.model_transaction_policy.decoupled = decoupled
    config.response_cache.enable = bool(cached)
    for key, value in (parameters or {}).items():
        config.parameters[key].string_value = value
    for tensor, datatype, dims in inputs:
        metadata.inputs.add(name=tensor, datatype=datatype, shape=[*lead, *dims])
        config.input.add(
            name=tensor, data_type=_type(datatype), dims=dims, optional=tensor in optional
        )
    for tensor, datatype, dims in outputs:
        metadata.outputs.add(name=tensor, datatype=datatype, shape=[*lead, *dims])
        config.output.add(name=tensor, data_type=_type(datatype), dims=dims)
    return Model(name, version, state, "", metadata, config, labels or {}, cached)


def _type(datatype: str) -> DataType.ValueType:
    return DataType.Value("TYPE_STRING" if datatype == "BYTES" else f"TYPE_{datatype}")


def identity(request: Request) -> Sequence[TensorData]:
    """Each input comes back as the output of the same number."""
    return [t._replace(name=t.name.replace("INPUT", "OUTPUT")) for t in request.inputs]


class FakeEngine:
    """Answers at once from the calling thread, or when told, from another."""

    def __init__(self, *models: Model) -> None:
        self.catalog = FakeCatalog(*models)
        self.runs: dict[str, Behaviour] = {}
        self.taken: list[Request] = []
        self.cancelled: list[Request] = []
        self.asked: list[Request] = []
        self.refuse: SitsError | None = None
        self.foreseen: SitsError | None = None
        self.hold = self.degraded = False
        self.looks: Look | None = None
        self.away: Counter[str] = Counter()
        self.answer_parameters: Mapping[str, ParameterValue] = {}
        self._sink: Callable[[Sequence[Answered]], None] = lambda _answered: None
        self._open: dict[Request, bool] = {}
        self._changed = threading.Condition()

    def deliver_to(self, sink: Callable[[Sequence[Answered]], None]) -> None:
        self._sink = sink

    def refusing(self, now: int) -> bool:
        return self.foreseen is not None or self.looks is not None

    def foresee(self, request: Request, now: int) -> SitsError | None:
        self.asked.append(request)
        return self.foreseen

    def look(self, request: Request, now: int) -> Look:
        self.asked.append(request)
        return self.looks or Look(self.foreseen)

    def turned_away(self, error: SitsError, requests: int, now: int) -> None:
        self.away[error.reason] += requests

    def submit(self, requests: Sequence[Request]) -> None:
        for request in requests:
            self._submit(request)

    def _submit(self, request: Request) -> None:
        if self.refuse is not None:
            self._sink([(request, Answer(error=self.refuse))])
            return
        with self._changed:
            self.taken.append(request)
            self._open[request] = True
            self._changed.notify_all()
        if not self.hold:
            self.finish(request)

    def cancel(self, request: Request) -> None:
        with self._changed:
            self.cancelled.append(request)
            self._changed.notify_all()
        self.finish(request, Answer(error=Cancelled("cancelled by the client")))

    def finish(self, request: Request, answer: Answer | None = None) -> None:
        """Answer `request`, unless it has been answered already."""
        if self._open.pop(request, False):
            self._sink([(request, answer or self._run(request))])

    def finish_all(self) -> None:
        for request in list(self._open):
            self.finish(request)

    @property
    def open_requests(self) -> list[Request]:
        return list(self._open)

    def wait(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout_s):
                raise TimeoutError(f"not so within {timeout_s} s")

    def _run(self, request: Request) -> Answer:
        try:
            outputs = tuple(self.runs.get(request.model, identity)(request))
        except SitsError as error:
            return Answer(error=error)
        model = self.catalog.find(request.model, request.version)
        names = [o.name for o in model.metadata.outputs]
        wanted = {names[i] for i in request.outputs} or set(names)
        chosen = tuple(o for o in outputs if o.name in wanted)
        run = Run(rows=request.rows, content=model.content)
        return Answer(chosen, None, run, self.answer_parameters)


def default_models() -> list[Model]:
    """`any_<DATATYPE>` takes any one-dimensional array, `rows` batches, `two` has two of all."""
    return [
        *(model(f"any_{d}", [("INPUT0", d, [-1])], [("OUTPUT0", d, [-1])]) for d in DATATYPES),
        model("rows", [("INPUT0", "FP32", [4])], [("OUTPUT0", "FP32", [4])], max_batch_size=8),
        model(
            "two",
            [("INPUT0", "INT32", [2]), ("INPUT1", "INT32", [2])],
            [("OUTPUT0", "INT32", [2]), ("OUTPUT1", "INT32", [2])],
        ),
    ]


def failing(error: SitsError | None = None) -> Behaviour:
    def run(_request: Request) -> Sequence[TensorData]:
        raise error or Internal("the model failed")

    return run
