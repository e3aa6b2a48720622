"""An executor in front of a Triton server: its models as ours, its errors as ours, its absence."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from sits_core.datatypes import NUMPY_TYPES
from sits_core.testing import free_port, wait_until
from sits_executor.testing import TIMEOUT_S, FakeDispatcher, arrays_of, batch
from sits_executor.testing_triton import FakeTriton
from sits_protos.oip.grpc_service_pb2 import ModelMetadataResponse
from sits_protos.v1 import control_pb2
from sits_protos.v1.common_pb2 import Parameter
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import RequestHeader

X = np.array([[1, 2], [3, 4]], np.float32)
LARGE = np.ones((8, 10_000), np.float32)


@pytest.fixture
def triton() -> Iterator[FakeTriton]:
    with FakeTriton(f"127.0.0.1:{free_port()}") as server:
        server.add("double")
        yield server


@pytest.fixture
def behind(linked: Any, triton: FakeTriton) -> Any:
    """`with behind(**settings) as (running, dispatcher)`, the model ready."""
    return lambda **more: linked(
        executor_triton_url=triton.address, executor_triton_period_s=0.05, **more
    )


def run(dispatcher: FakeDispatcher, number: int, *arrays: Any, model: str = "double") -> Any:
    return dispatcher.run(batch(number, model, arrays))


def error_of(message: Any) -> tuple[int, str]:
    error = message.result.error if message.result.HasField("error") else message.results[0].error
    return error.code, error.reason


def shared() -> set[str]:
    return {path.name for path in Path("/dev/shm").glob("sits-*") if len(path.name) == 21}  # noqa: S108 - where it lies


def ready(running: Any) -> str:
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(running.address))
    answer = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=TIMEOUT_S)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


# Models


def test_its_models_are_ours_and_batches_run_there(behind, triton):
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        result = run(dispatcher, 1, X[:1], X)
        assert np.array_equal(arrays_of(result)["y"], np.concatenate([X[:1], X]) * 2)
    (request,) = triton.inferred
    assert list(request.inputs[0].shape) == [3, 2], "one request for the whole batch"


def test_metadata_versions_and_configuration_come_through(behind, triton):
    triton.add("double", version="3")
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double", "3")
        entries = {e.version: e for e in dispatcher.catalogs[-1].models if e.name == "double"}
        metadata = ModelMetadataResponse.FromString(entries["3"].metadata)
        assert list(metadata.versions) == ["1", "3"]
        assert list(metadata.inputs[0].shape) == [-1, 2]
        assert metadata.platform == "triton_python"


def test_a_model_that_is_loaded_there_later_is_served_and_one_unloaded_is_not(behind, triton):
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        triton.add("late")
        dispatcher.wait_ready("late")
        triton.remove("late")
        dispatcher.wait(lambda: dispatcher.state("late") == "UNAVAILABLE", "unload")
        assert dispatcher.state("double") == "READY"


def test_a_changed_configuration_is_announced_anew(behind, triton):
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        triton.add("double", dims="3")

        def has_three() -> bool:
            (entry,) = dispatcher.catalogs[-1].models
            metadata = ModelMetadataResponse.FromString(entry.metadata)
            return list(metadata.inputs[0].shape) == [-1, 3]

        dispatcher.wait(has_three, "new shape")
        wide = np.ones((1, 3), np.float32)
        assert np.array_equal(arrays_of(run(dispatcher, 1, wide))["y"], wide * 2)


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("model_transaction_policy { decoupled: true }", "decoupled"),
        ("sequence_batching { }", "sequence_batching"),
    ],
)
def test_what_the_mesh_cannot_serve_is_refused_by_name_and_the_rest_is_served(
    behind, triton, config, named
):
    triton.add("odd", config)
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        dispatcher.wait(lambda: dispatcher.state("odd") == "UNAVAILABLE", "refusal")
        (entry,) = [e for e in dispatcher.catalogs[-1].models if e.name == "odd"]
        assert named in entry.reason


def test_an_ensemble_there_is_one_model_here(behind, triton):
    step = 'step { model_name: "double" input_map { key: "x" value: "x" } }'
    triton.add("whole", f"ensemble_scheduling {{ {step} }}")
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("whole")
        assert np.array_equal(arrays_of(run(dispatcher, 1, X, model="whole"))["y"], X * 2)


def test_loads_and_unloads_are_passed_on(behind, triton):
    with behind() as (running, dispatcher):
        dispatcher.wait_ready("double")
        stub = ControlStub(grpc.insecure_channel(running.address))
        request = control_pb2.LoadModelRequest(model="more", files={"1/model.py": b"code"})
        stub.LoadModel(request, timeout=TIMEOUT_S)
        dispatcher.wait_ready("more")
        assert triton.loads[0].parameters["file:1/model.py"].bytes_param == b"code"
        stub.UnloadModel(control_pb2.UnloadModelRequest(model="more"), timeout=TIMEOUT_S)
        dispatcher.wait(lambda: dispatcher.state("more") == "UNAVAILABLE", "unload")
        with pytest.raises(grpc.RpcError) as refused:
            stub.LoadModel(control_pb2.LoadModelRequest(model="none"), timeout=TIMEOUT_S)
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "no such model none" in refused.value.details()


def test_what_it_counted_is_among_our_metrics(behind):
    with behind() as (running, dispatcher):
        dispatcher.wait_ready("double")
        run(dispatcher, 1, X)

        label = '{model="double",version="1"}'
        wait_until(lambda: f"sits_executor_triton_inferences_total{label} 1.0" in running.metrics())
        assert f"sits_executor_triton_queue_seconds_total{label} 2.0" in running.metrics()


# Types and parameters


@pytest.mark.parametrize("datatype", sorted(NUMPY_TYPES))
def test_every_datatype_goes_there_and_back(behind, triton, datatype):
    triton.factor = 1
    triton.add("typed")
    config = triton.models["typed", "1"]
    for tensor in (config.input[0], config.output[0]):
        tensor.data_type = f"TYPE_{datatype}"
    bits = {"BF16": [[0x3F80, 0xC000]], "BOOL": [[0, 1]]}.get(datatype)
    given = np.array([[1, 2]]).astype(np.uint8 if bits else NUMPY_TYPES[datatype])
    if bits is not None:
        whole = np.dtype(f"u{NUMPY_TYPES[datatype].itemsize}")
        given = np.array(bits, whole).view(NUMPY_TYPES[datatype])
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("typed")
        found = arrays_of(run(dispatcher, 1, given, model="typed"))["y"]
        assert found.dtype == given.dtype
        assert found.tobytes() == given.tobytes()


def test_bytes_go_there_and_back(behind, triton):
    triton.add("text")
    config = triton.models["text", "1"]
    for tensor in (config.input[0], config.output[0]):
        tensor.data_type = "TYPE_STRING"
    given = np.array([[b"a\xff", b""]], object)
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("text")
        assert arrays_of(run(dispatcher, 1, given, model="text"))["y"].tolist() == given.tolist()


def test_parameters_of_a_request_are_passed_on_but_those_of_the_mesh(behind, triton):
    header = RequestHeader()
    for key, value in (("mine", "1"), ("sits_tenant", "gold"), ("priority", "1")):
        header.parameters[key].CopyFrom(Parameter(string_value=value))
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        dispatcher.run(batch(1, "double", [X], headers=[header]))
    assert dict(triton.inferred[0].parameters).keys() == {"mine"}


# Shared memory


def test_large_inputs_go_through_shared_memory_that_is_used_again_and_left_behind_nowhere(
    behind, triton
):
    triton.add("wide", dims="-1")
    before = shared()
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("wide")
        for number in (1, 2):
            result = run(dispatcher, number, LARGE * number, model="wide")
            assert np.array_equal(arrays_of(result)["y"], LARGE * number * 2)
        assert not any(request.raw_input_contents for request in triton.inferred)
        assert len(triton.regions) == 1
    wait_until(lambda: shared() <= before)


def test_a_server_that_allows_no_shared_memory_gets_all_in_the_message(behind, triton):
    triton.add("wide", dims="-1")
    triton.may_share = False
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("wide")
        assert np.array_equal(arrays_of(run(dispatcher, 1, LARGE, model="wide"))["y"], LARGE * 2)
        assert triton.inferred[0].raw_input_contents


def test_a_server_started_anew_between_two_runs_is_not_noticed(behind, triton):
    triton.add("wide", dims="-1")
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("wide")
        run(dispatcher, 1, LARGE, model="wide")
        triton.regions.clear()
        assert np.array_equal(arrays_of(run(dispatcher, 2, LARGE, model="wide"))["y"], LARGE * 2)


def test_shared_memory_can_be_switched_off(behind, triton):
    triton.add("wide", dims="-1")
    with behind(executor_triton_shm=False) as (_, dispatcher):
        dispatcher.wait_ready("wide")
        run(dispatcher, 1, LARGE, model="wide")
        assert not triton.regions


# Errors


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (grpc.StatusCode.INVALID_ARGUMENT, (3, "INVALID_ARGUMENT")),
        (grpc.StatusCode.DEADLINE_EXCEEDED, (4, "DEADLINE_EXCEEDED")),
        (grpc.StatusCode.UNAVAILABLE, (14, "MODEL_NOT_READY")),
        (grpc.StatusCode.INTERNAL, (13, "MODEL_FAILED")),
        (grpc.StatusCode.UNKNOWN, (13, "MODEL_FAILED")),
    ],
)
def test_its_errors_are_ours_with_a_status_that_says_whether_a_retry_may_help(
    behind, triton, status, expected
):
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        triton.refuse = status
        assert error_of(run(dispatcher, 1, X)) == expected
        triton.refuse = None
        dispatcher.wait_ready("double")
        assert np.array_equal(arrays_of(run(dispatcher, 2, X))["y"], X * 2)


# Absence


def test_without_the_server_the_executor_is_not_ready_and_with_it_again_it_is(behind, triton):
    with behind() as (running, dispatcher):
        dispatcher.wait_ready("double")
        wait_until(lambda: ready(running) == "SERVING")
        triton.stop()
        dispatcher.wait(lambda: dispatcher.state("double") == "UNAVAILABLE", "loss")
        wait_until(lambda: ready(running) == "NOT_SERVING")
        assert error_of(run(dispatcher, 1, X)) == (14, "MODEL_NOT_READY")
        triton.start()
        dispatcher.wait_ready("double")
        wait_until(lambda: ready(running) == "SERVING")
        assert np.array_equal(arrays_of(run(dispatcher, 2, X))["y"], X * 2)


def test_a_server_that_dies_with_a_batch_fails_it_so_that_it_can_go_elsewhere(behind, triton):
    with behind() as (_, dispatcher):
        dispatcher.wait_ready("double")
        triton.go.clear()
        dispatcher.send(batch(1, "double", [X, X]))
        wait_until(lambda: triton.inferred)
        triton.stop()
        assert error_of(dispatcher.result(1)) == (14, "MODEL_NOT_READY")
        assert len(triton.inferred) == 1, "no request of the batch is tried alone"
        triton.go.set()


def test_a_server_that_is_not_there_yet_is_waited_for(linked, tmp_path):
    address = f"127.0.0.1:{free_port()}"
    settings = {"executor_triton_url": address, "executor_triton_period_s": 0.05}
    with linked(**settings) as (running, dispatcher):
        assert ready(running) == "NOT_SERVING"
        with FakeTriton(address) as triton:
            triton.add("double")
            dispatcher.wait_ready("double")
            wait_until(lambda: ready(running) == "SERVING")
