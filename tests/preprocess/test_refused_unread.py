"""Under overload requests are refused before they are read, and are read all the same when not."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits_core.clock import Deadline, now_ns
from sits_core.errors import DeadlineExceeded, InvalidArgument, NotFound, Unavailable
from sits_preprocess.batch_drafts import SitsMessage
from sits_preprocess.inference import Ask
from sits_preprocess.oip.reading import OipMessage, parse
from sits_preprocess.oip.result import Result
from sits_protos.oip.grpc_service_pb2 import ModelInferRequest
from sits_protos.v1.inference_pb2 import InferRequest

BUSY = Unavailable("too much work", reason="QUEUE_FULL", retry_after_ms=7)


class Call:
    """As much of a call as its origin is read from."""

    peer = "test"

    def __init__(self, deadline: Deadline | None = None, **metadata: str) -> None:
        self.metadata = {key.replace("_", "-"): value for key, value in metadata.items()}
        self.deadline = deadline


class Unreadable:
    """Names a model and must not be read."""

    def __init__(self, model: str = "rows", version: str = "") -> None:
        self._names = (model, version)

    def names(self) -> tuple[str, str]:
        return self._names

    def read(self) -> None:
        pytest.fail("was read")


def start(served, message, call: Call | None = None) -> Result:
    results: list[Result] = []
    inference = served.front.inference
    origin = inference.admission.origin(call or Call())
    inference.start([Ask(message, origin, 99, results.append)], now_ns())
    (result,) = results
    return result


@given(
    st.text(max_size=130), st.text(max_size=130), st.text(max_size=20), st.sets(st.text(max_size=9))
)
def test_names_are_those_that_reading_finds(
    model: str, version: str, request_id: str, outputs: set[str]
) -> None:
    request = ModelInferRequest(model_name=model, model_version=version, id=request_id)
    for name in sorted(outputs):
        request.outputs.add(name=name)
    message = request.SerializeToString()
    names = OipMessage(message).names()
    short = len(model.encode()) < 128 and len(version.encode()) < 128
    if model and short:
        assert names == (model, version)
    else:
        assert names is None or names == (model, "")
        assert not model or len(model.encode()) >= 128 or len(version.encode()) >= 128


@given(st.binary(max_size=300))
def test_any_bytes_have_names_or_none(message: bytes) -> None:
    names = OipMessage(message).names()
    assert names is None or all(isinstance(name, str) for name in names)


def test_a_request_that_names_its_tenant_is_read_first() -> None:
    request = ModelInferRequest(model_name="rows")
    request.parameters["sits_tenant"].string_param = "gold"
    assert OipMessage(request.SerializeToString()).names() is None
    inference = InferRequest(model="rows")
    assert SitsMessage(inference).names() == ("rows", "")
    inference.parameters["sits_tenant"].string_value = "gold"
    assert SitsMessage(inference).names() is None


def test_without_overload_nobody_looks_twice(served) -> None:
    with pytest.raises(InvalidArgument, match="that are none"):
        parse(b"\x0a\x04rows\xff")
    assert "that are none" in str(start(served, OipMessage(b"\x0a\x04rows\xff")).error)
    assert served.engine.asked == []


def test_what_would_be_refused_is_not_read(served) -> None:
    served.engine.foreseen = BUSY
    late = Deadline.after(9.0)
    assert start(served, Unreadable(), Call(late, sits_tenant="Gold")).error is BUSY
    (asked,) = served.engine.asked
    assert (asked.model, asked.version, asked.tenant) == ("rows", "1", "gold")
    assert asked.deadline == late
    assert served.front.inference.open_requests == served.front.inference.open_bytes == 0
    labels = {"model": "rows", "tenant": "gold", "outcome": "UNAVAILABLE"}
    assert served.metric("sits_requests_total", **labels) == 1


def test_the_reason_is_what_reading_would_have_found(served) -> None:
    served.engine.foreseen = BUSY
    assert isinstance(start(served, Unreadable("nobody")).error, NotFound)
    assert isinstance(start(served, Unreadable("rows", "x")).error, InvalidArgument)
    assert isinstance(start(served, Unreadable(), Call(sits_tenant="?")).error, InvalidArgument)
    late = start(served, Unreadable(), Call(Deadline(1))).error
    assert isinstance(late, DeadlineExceeded)


def test_what_would_not_be_refused_is_checked_as_always(served) -> None:
    served.engine.foreseen = BUSY
    served.engine.foresee = lambda request, now: served.engine.asked.append(request)
    noise = random.Random(1).randbytes(40)
    assert "that are none" in str(start(served, OipMessage(b"\x0a\x04rows" + noise)).error)
    assert len(served.engine.asked) == 1
