"""Stand-ins for tests and benchmarks: models without files, batches, and a dispatcher's link."""

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import grpc
import numpy as np

from sits_channel.link import Link, LinkClient
from sits_core import datatypes
from sits_core.datatypes import BYTES, Array
from sits_executor.contract import DATATYPES
from sits_protos.oip.model_config_pb2 import DataType
from sits_protos.v1.common_pb2 import Tensor
from sits_protos.v1.link_pb2 import (
    BatchHeader,
    Cancel,
    Catalog,
    Credits,
    Hello,
    LinkMessage,
    ModelState,
    RequestHeader,
    Role,
)

TIMEOUT_S = 20.0


def builtin_config(
    function: str,
    *,
    datatype: str = "FP32",
    dims: Sequence[int] = (2,),
    out_datatype: str = "",
    out_dims: Sequence[int] | None = None,
    max_batch: int = 8,
    instances: int = 1,
    **parameters: object,
) -> str:
    """config.pbtxt of a builtin model with one input `x` and one output `y`."""
    out = dims if out_dims is None else out_dims
    out_type = _type(out_datatype or datatype)
    entries = {"function": function, **parameters}
    return "\n".join(
        [
            f'backend: "builtin" max_batch_size: {max_batch}',
            f"instance_group {{ count: {instances} }}",
            f'input {{ name: "x" data_type: {_type(datatype)} dims: {list(dims)} }}',
            f'output {{ name: "y" data_type: {out_type} dims: {list(out)} }}',
            *(
                f'parameters {{ key: "{key}" value: {{ string_value: "{value}" }} }}'
                for key, value in entries.items()
            ),
        ]
    )


def pipeline_config(
    steps: Sequence[str],
    *,
    datatype: str = "FP32",
    dims: Sequence[int] = (2,),
    out_datatype: str = "",
    out_dims: Sequence[int] | None = None,
    max_batch: int = 8,
) -> str:
    """config.pbtxt of a pipeline from `x` to `y`; `steps` are the texts of its steps."""
    out = dims if out_dims is None else out_dims
    out_type = _type(out_datatype or datatype)
    return "\n".join(
        [
            f'platform: "ensemble" max_batch_size: {max_batch}',
            f'input {{ name: "x" data_type: {_type(datatype)} dims: {list(dims)} }}',
            f'output {{ name: "y" data_type: {out_type} dims: {list(out)} }}',
            "ensemble_scheduling {",
            *(f"step {step}" for step in steps),
            "}",
        ]
    )


def write_model(
    repository: Path, name: str, config: str = "", files: Mapping[str, bytes] | None = None
) -> Path:
    """A folder of the repository; a version 1 without files when there are none."""
    folder = repository / name
    (folder / "1").mkdir(parents=True) if files is None else folder.mkdir(parents=True)
    for relative, content in (files or {}).items():
        path = folder / relative
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if config:
        (folder / "config.pbtxt").write_text(config)
    return folder


def batch(
    batch_id: int,
    model: str,
    requests: Sequence[Array] | Sequence[Mapping[str, Array]],
    *,
    version: str = "1",
    headers: Sequence[RequestHeader] | None = None,
    batches: bool = True,
) -> LinkMessage:
    """One message with the columns of all requests; a bare array is the input `x`."""
    named = [r if isinstance(r, Mapping) else {"x": r} for r in requests]
    own = [RequestHeader() for _ in named] if headers is None else list(headers)
    for header, arrays in zip(own, named, strict=True):
        header.rows = len(next(iter(arrays.values()))) if batches else 1
    contexts = [h.trace_context for h in own if h.trace_context]
    deadlines = [h.deadline_unix_ns for h in own if h.deadline_unix_ns]
    return LinkMessage(
        batch=BatchHeader(
            batch_id=batch_id,
            model=model,
            version=version,
            requests=len(own),
            rows=sum(h.rows for h in own),
            trace_contexts=contexts,
            earliest_deadline_unix_ns=min(deadlines, default=0),
        ),
        requests=own,
        inputs=[_column(name, [arrays[name] for arrays in named]) for name in named[0]],
    )


def arrays_of(message: LinkMessage) -> dict[str, Array]:
    """The inline outputs of a result."""
    return {t.name: datatypes.decode(t.inline, t.datatype, tuple(t.shape)) for t in message.outputs}


class FakeDispatcher:
    """A dispatcher's end of a link to a real executor. Use as a context manager.

    with FakeDispatcher(address) as dispatcher:
        dispatcher.wait_ready("model")
        result = dispatcher.run(batch(1, "model", [array]))
    """

    def __init__(self, address: str, metadata: tuple[tuple[str, str], ...] = ()) -> None:
        self._client = LinkClient(address, "/sits.v1.Execute/Link", self, _open_channel, metadata)
        self._changed = threading.Condition()
        self.hellos: list[Hello] = []
        self.catalogs: list[Catalog] = []
        self.credits: list[Credits] = []
        self.results: dict[int, list[LinkMessage]] = {}
        self.closed_reason = ""

    def send(self, message: LinkMessage) -> None:
        link = self._client.link
        if link is None or not link.write(message.SerializeToString()).accepted:
            raise ConnectionError("no link to the executor")

    def send_raw(self, message: bytes) -> None:
        if self._client.link is not None:
            self._client.link.write(message)

    def cancel(self, batch_id: int, *requests: int) -> None:
        self.send(LinkMessage(cancel=Cancel(batch_id=batch_id, requests=requests)))

    def run(self, message: LinkMessage) -> LinkMessage:
        self.send(message)
        return self.result(message.batch.batch_id)

    def result(self, batch_id: int) -> LinkMessage:
        self.wait(lambda: self.results.get(batch_id), f"result of batch {batch_id}")
        return self.results[batch_id][0]

    def wait_ready(self, model: str, version: str = "1") -> None:
        self.wait(lambda: self.state(model, version) == "READY", f"model {model}/{version}")

    def state(self, model: str, version: str = "1") -> str:
        entries = self.catalogs[-1].models if self.catalogs else ()
        states = [e.state for e in entries if (e.name, e.version) == (model, version)]
        return ModelState.Name(states[0]).removeprefix("MODEL_STATE_") if states else ""

    def wait_window(self, model: str, batches: int) -> None:
        """Until so many of its batches may be unanswered."""
        self.wait(lambda: self.window(model) == batches, f"a window of {batches}")

    def window(self, model: str) -> int:
        told = self.credits[-1].models if self.credits else ()
        return sum(credit.window for credit in told if credit.model == model)

    def wait(self, condition: Callable[[], object], what: str) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, TIMEOUT_S):
                raise TimeoutError(f"{what} did not come within {TIMEOUT_S} s")

    def opened(self, link: Link) -> None:
        hello = Hello(role=Role.ROLE_DISPATCHER, id="dispatcher-test")
        link.write(LinkMessage(hello=hello).SerializeToString())

    def received(self, link: Link, message: bytes) -> None:
        parsed = LinkMessage.FromString(message)
        with self._changed:
            if parsed.HasField("hello"):
                self.hellos.append(parsed.hello)
            elif parsed.HasField("catalog"):
                self.catalogs.append(parsed.catalog)
            elif parsed.HasField("credits"):
                self.credits.append(parsed.credits)
            elif parsed.HasField("result"):
                self.results.setdefault(parsed.result.batch_id, []).append(parsed)
            self._changed.notify_all()

    def closed(self, link: Link, reason: str) -> None:
        with self._changed:
            self.closed_reason = reason
            self._changed.notify_all()

    def __enter__(self) -> "FakeDispatcher":
        self._client.start()
        self.wait(lambda: self.hellos and self.catalogs, "greeting of the executor")
        return self

    def __exit__(self, *_exc: object) -> None:
        self._client.stop()


def _column(name: str, parts: Sequence[Array]) -> Tensor:
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    tensor = Tensor(
        name=name,
        datatype=datatypes.from_numpy(whole.dtype),
        shape=whole.shape,
        inline=datatypes.encode(whole),
    )
    if tensor.datatype == BYTES:
        tensor.request_bytes.extend(len(datatypes.encode(part)) for part in parts)
    return tensor


def _type(datatype: str) -> str:
    return next(DataType.Name(n) for n, name in DATATYPES.items() if name == datatype)


def _open_channel(address: str) -> grpc.Channel:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    return grpc.insecure_channel(address, options=unlimited)
