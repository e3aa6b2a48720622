"""Wrong requests get their clear error over the whole mesh, and nobody else notices them."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import Queue

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2 as oip
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub as Stub
from tritonclient.utils import InferenceServerException

from sits_cli.mesh import Mesh
from sits_cli.testing_load import Load
from sits_cli.testing_mesh import idle, metric, pid_of, pids, status_of, tensor
from sits_cli.testing_process import private_bytes
from sits_core.errors import MAX_MESSAGE_BYTES
from sits_core.testing import wait_until

pytestmark = pytest.mark.mesh

TIMEOUT_S = 20
MB = 1 << 20
Client = triton.InferenceServerClient


@pytest.fixture
def stub(mesh: Mesh) -> Iterator[Stub]:
    with grpc.insecure_channel(mesh.addresses.front) as channel:
        yield Stub(channel)


def request(
    model: str, shape: Sequence[int], size_bytes: int, datatype: str = "FP32", **fields: object
) -> oip.ModelInferRequest:
    """One input X that may say anything about itself."""
    made = oip.ModelInferRequest(model_name=model, **fields)
    made.inputs.add(name="X", datatype=datatype, shape=shape)
    made.raw_input_contents.append(bytes(size_bytes))
    return made


def refused(stub: Stub, wrong: oip.ModelInferRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(wrong, timeout=TIMEOUT_S)
    return raised.value.code(), raised.value.details()


def refused_in_stream(stub: Stub, wrong: oip.ModelInferRequest) -> tuple[grpc.StatusCode, str]:
    (answer,) = stub.ModelStreamInfer(iter([wrong]), timeout=TIMEOUT_S)
    code = answer.infer_response.parameters["sits_status"].string_param
    return grpc.StatusCode[code], answer.error_message


Way = Callable[[Stub, oip.ModelInferRequest], tuple[grpc.StatusCode, str]]
both_ways = pytest.mark.parametrize("way", [refused, refused_in_stream])


def in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@both_ways
def test_negative_dimensions_bring_nothing_down(mesh: Mesh, stub: Stub, way: Way) -> None:
    """OIP-06: five shapes, 100 times each, from 8 threads, beside a good client."""
    shapes = ([-1, 16], [16, -1], [-(1 << 63)], [0, -1], [-1, -16])
    before = pids(mesh)

    def ask(_number: int) -> set[grpc.StatusCode]:
        return {way(stub, request("brief", shape, 64))[0] for _ in range(13) for shape in shapes}

    with Load(mesh.addresses.front, clients=2) as load:
        codes = in_threads(8, ask)
        load.wait_for_more(20)
    assert codes == [{grpc.StatusCode.INVALID_ARGUMENT}] * 8
    assert load.all_right, load
    assert pids(mesh) == before


@both_ways
def test_texts_say_what_was_expected_and_what_came(stub: Stub, way: Way) -> None:
    """OIP-07: whole, with the id, the model, the tensor and both shapes, types or sizes."""
    pixels = 3 * 640 * 640
    extra = request("image", [1, 3, 640, 640], 4 * pixels)
    extra.inputs.add(name="MORE", datatype="FP32", shape=[1, 1])
    extra.raw_input_contents.append(bytes(4))
    unknown_output = request("image", [1, 3, 640, 640], 4 * pixels)
    unknown_output.outputs.add(name="Z")
    cases = {
        "no batch": (
            request("image", [3, 640, 640], 4 * pixels),
            ("'X'", "[-1,3,640,640]", "[3,640,640]", "batch dim"),
        ),
        "wrong size": (
            request("image", [1, 3, 384, 640], 4 * pixels),
            ("'X'", "[-1,3,640,640]", "[1,3,384,640]", "batch dim"),
        ),
        "half the bytes": (
            request("image", [1, 3, 640, 640], 2 * pixels),
            ("'X'", str(4 * pixels), str(2 * pixels)),
        ),
        "datatype": (
            request("image", [1, 3, 640, 640], 2 * pixels, "FP16"),
            ("'X'", "FP16", "FP32"),
        ),
        "missing input": (oip.ModelInferRequest(model_name="image"), ("'X'",)),
        "extra input": (extra, ("'MORE'",)),
        "unknown output": (unknown_output, ("'Z'",)),
    }
    for name, (wrong, parts) in cases.items():
        wrong.id = f"call {name}"
        code, text = way(stub, wrong)
        assert code == grpc.StatusCode.INVALID_ARGUMENT, (name, text)
        missing = [p for p in (f"call {name}", "'image'", *parts) if p not in text]
        assert missing == [], (name, text)


def test_a_models_own_error_survives_all_hops(stub: Stub) -> None:
    """OIP-07, GRP-06: 40 kB, line breaks, percent signs, a path: status and first part arrive."""
    wrong = request("verbose", [1, 1], 0)
    wrong.raw_input_contents[0] = np.float32(666).tobytes()
    for way in (refused, refused_in_stream):
        code, text = way(stub, wrong)
        assert code == grpc.StatusCode.INTERNAL
        assert "model 'verbose' failed: ValueError: 100% wrong: žluť 🐎" in text
        assert len(text.encode()) <= MAX_MESSAGE_BYTES
        assert "\n" not in text
        assert "Traceback" not in text
        assert "/etc" not in text


def test_long_names_and_headers_hurt_only_their_own_call(mesh: Mesh, stub: Stub) -> None:
    """GRP-06: a name of 20 kB, 200 headers, a large baggage; larger still is refused alone."""
    good = request("brief", [1, 4], 16)
    code, text = refused(stub, request("x" * 20_000, [1], 4))
    assert code == grpc.StatusCode.INVALID_ARGUMENT
    assert len(text.encode()) <= MAX_MESSAGE_BYTES
    for headers in (
        [(f"x-{n}", "v") for n in range(200)],
        [("baggage", "k=" + "v" * 4000), ("tracestate", "t=" + "s" * 4000)],
        [("authorization", "Bearer " + "a" * 12_000)],
    ):
        assert stub.ModelInfer(good, timeout=TIMEOUT_S, metadata=headers).model_name == "brief"
    with pytest.raises(grpc.RpcError) as raised:
        stub.ModelInfer(good, timeout=TIMEOUT_S, metadata=[("x-large", "v" * 40_000)])
    # The native front says it in HTTP (431), for which gRPC clients have no status of its own.
    assert raised.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNKNOWN)
    assert stub.ModelInfer(good, timeout=TIMEOUT_S).model_name == "brief"
    wait_until(lambda: idle(mesh, but=1), what="nothing in flight")


GIANT = 1 << 62


def giants() -> dict[str, oip.ModelInferRequest]:
    """SEC-05: what declares more than there is, or more than anybody can mean."""
    shapes = (
        [1 << 32, 1 << 32], [GIANT, 4], [65536] * 4, [1 << 31, 1], [(1 << 32) + 1, 1], [1] * 100_000
    )  # fmt: skip
    made = {str(shape[:4]): request("brief", shape, 8) for shape in shapes}
    made["inputs"] = request("brief", [1, 2], 8)
    for number in range(100_000):
        made["inputs"].inputs.add(name=str(number), datatype="FP32", shape=[1, 1])
    made["outputs"] = request("brief", [1, 2], 8)
    for number in range(100_000):
        made["outputs"].outputs.add(name=str(number))
    made["key"] = request("brief", [1, 2], 8)
    made["key"].parameters["k" * MB].int64_param = 1
    made["id"] = request("brief", [1, 2], 8, id="i" * 1_000_000)
    made["shared"] = request("brief", [1, 2], 8)
    output = made["shared"].outputs.add(name="Y")
    output.parameters["shared_memory_region"].string_param = "none"
    output.parameters["shared_memory_byte_size"].int64_param = 1 << 50
    return made


def test_giant_declarations_take_no_memory_and_disturb_nobody(mesh: Mesh, stub: Stub) -> None:
    """SEC-05: 50 at once beside a good client."""
    wrong = giants()
    front = pid_of(mesh, "preprocess")
    before, others = private_bytes(front), pids(mesh)
    peak = [before]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak.append(private_bytes(front))

    def ask(number: int) -> tuple[str, grpc.StatusCode]:
        name = list(wrong)[number % len(wrong)]
        return name, refused(stub, wrong[name])[0]

    watcher = threading.Thread(target=watch)
    watcher.start()
    with Load(mesh.addresses.front, clients=2) as load:
        codes = dict(in_threads(50, ask))
        load.wait_for_more(20)
    done.set()
    watcher.join()
    allowed = dict.fromkeys(wrong, grpc.StatusCode.INVALID_ARGUMENT)
    assert codes == allowed | {"shared": grpc.StatusCode.UNIMPLEMENTED}
    assert load.all_right, load
    assert max(peak) < before + 256 * MB
    assert pids(mesh) == others


def test_wrong_requests_of_a_stream_cost_only_themselves(mesh: Mesh, stub: Stub) -> None:
    """OIP-11: a, c, e are answered, b and d come back with their ids; the stream stays open."""
    asked = {"a": ("brief", [1, 4]), "b": ("brief", [4]), "c": ("brief", [1, 4]),
             "d": ("nobody", [1, 4]), "e": ("brief", [1, 4])}  # fmt: skip
    sent = (request(model, shape, 16, id=name) for name, (model, shape) in asked.items())
    answers = list(stub.ModelStreamInfer(sent, timeout=TIMEOUT_S))
    assert [answer.infer_response.id for answer in answers] == list(asked)
    failed = {a.infer_response.id: a.error_message for a in answers if a.error_message}
    assert list(failed) == ["b", "d"]
    assert "unexpected shape" in failed["b"]
    assert "'nobody'" in failed["d"]


def test_the_stock_client_hears_of_them_in_order(mesh: Mesh) -> None:
    """OIP-11: it keeps no ids of failed requests, so order and text must tell."""
    answers: Queue[tuple[triton.InferResult, InferenceServerException | None]] = Queue()
    shapes = ((1, 4), (4,), (1, 4))
    with Client(mesh.addresses.front) as client:
        client.start_stream(lambda result, error: answers.put((result, error)))
        for number, shape in enumerate(shapes):
            data = np.ones(shape, np.float32)
            client.async_stream_infer("brief", [tensor(data)], request_id=f"r{number}")
        found = [answers.get(timeout=TIMEOUT_S) for _ in shapes]
        client.stop_stream()
    assert [error is None for _, error in found] == [True, False, True]
    assert "[request id: r1]" in str(found[1][1])


def test_with_the_header_the_first_error_ends_the_stream_with_its_status(stub: Stub) -> None:
    """OIP-11."""
    asked = [
        request("brief", [1, 4], 16, id="a"),
        request("nobody", [1, 4], 16, id="b"),
        request("brief", [1, 4], 16, id="c"),
    ]
    call = stub.ModelStreamInfer(
        iter(asked), timeout=TIMEOUT_S, metadata=[("triton_grpc_error", "true")]
    )
    assert next(call).infer_response.id == "a"
    with pytest.raises(grpc.RpcError) as raised:
        next(call)
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND


def test_invented_names_make_no_new_series(mesh: Mesh, client: Client) -> None:
    """OIP-08."""
    status_of(lambda: client.infer("invented-0", [tensor(np.ones((1, 1), np.float32))]))

    def series() -> int:
        return sum(
            int(metric(at, "sits_requests_total", model=f"invented-{n}") > 0)
            for at in (mesh.addresses.front_metrics, mesh.addresses.admin)
            for n in range(20)
        )

    for number in range(20):
        status_of(lambda n=number: client.infer(f"invented-{n}", [tensor(np.ones((1, 1), "f"))]))
    assert series() == 0
