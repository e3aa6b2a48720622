"""The executor as a service: real links, real models."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

from sits_channel.pool import PayloadPool
from sits_channel.pool_probe import shares_memory
from sits_channel.pool_reader import PoolReader
from sits_core.testing import wait_until
from sits_core.tracing import TraceContext
from sits_executor.testing import (
    TIMEOUT_S,
    FakeDispatcher,
    arrays_of,
    batch,
    builtin_config,
    write_model,
)
from sits_protos.v1.link_pb2 import LinkMessage, Release, RequestHeader

X = np.array([[1, 2], [3, 4]], np.float32)


# models and batches
def test_a_folder_with_just_a_model_file_is_served(
    repository: Path, linked: Any, onnx_models: Any
) -> None:
    write_model(repository, "add", files={"1/model.onnx": onnx_models.add(["batch", 3], 1.0)})
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("add")
        a, b = np.ones((2, 3), np.float32), np.full((2, 3), 2, np.float32)
        result = dispatcher.run(batch(1, "add", [{"a": a, "b": b}, {"a": b, "b": b}]))
    assert [r.rows for r in result.results] == [2, 2]
    assert all(r.final for r in result.results)
    np.testing.assert_array_equal(arrays_of(result)["sum"], np.concatenate([a + b + 1, b + b + 1]))


def test_two_versions_serve_side_by_side(repository: Path, linked: Any, onnx_models: Any) -> None:
    files = {
        "1/model.onnx": onnx_models.matmul([[1, 0], [0, 1]]),
        "2/model.onnx": onnx_models.matmul([[0, 1], [1, 0]]),
    }
    write_model(repository, "mm", "version_policy { all {} }", files)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("mm", "2")
        one = dispatcher.run(batch(1, "mm", [X], version="1"))
        two = dispatcher.run(batch(2, "mm", [X], version="2"))
        newest = dispatcher.run(batch(3, "mm", [X], version=""))
    assert arrays_of(one)["y"].tolist() == X.tolist()
    assert arrays_of(two)["y"].tolist() == X[:, ::-1].tolist()
    assert newest.result.version == "2"


@pytest.mark.parametrize("backend", ["onnx", "builtin"])
def test_bytes_of_any_content_come_back(
    backend: str, repository: Path, linked: Any, onnx_models: Any
) -> None:
    if backend == "onnx":
        model = onnx_models.unary("Identity", ["b", 1], TensorProto.STRING)
        write_model(repository, "id", files={"1/model.onnx": model})
    else:
        write_model(repository, "id", builtin_config("identity", datatype="BYTES", dims=[1]))
    values = [b"", b"\0", b"\xff\xfe", b"\xff\xd8\xff\xe0\0\x10JFIF", "é日".encode(),
              random.Random(1).randbytes(1 << 20)]  # fmt: skip
    array = np.empty((len(values), 1), object)
    array[:, 0] = values
    with linked(log_level="debug", trace_ratio=1.0) as (_, dispatcher):
        dispatcher.wait_ready("id")
        context = TraceContext(b"t" * 16, b"s" * 8).to_wire()
        headers = [RequestHeader(trace_context=context), RequestHeader()]
        result = dispatcher.run(batch(1, "id", [array[:2], array[2:]], headers=headers))
    assert arrays_of(result)["y"][:, 0].tolist() == values
    assert list(result.outputs[0].request_bytes) == [9, sum(4 + len(v) for v in values[2:])]


def test_a_model_that_does_not_batch_takes_one_request_with_its_literal_shape(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "one", builtin_config("identity", max_batch=0, dims=[-1, 2]))
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("one")
        result = dispatcher.run(batch(1, "one", [X], batches=False))
    assert arrays_of(result)["y"].tolist() == X.tolist()
    assert result.results[0].rows == 1


@pytest.mark.parametrize("layout", ["fortran", "strided", "reversed", "big_endian"])
@pytest.mark.parametrize("by_reference", [False, True])
def test_any_memory_layout_arrives_with_equal_values(
    layout: str, by_reference: bool, repository: Path, linked: Any
) -> None:
    write_model(repository, "m", builtin_config("layout", layout=layout))
    with linked(executor_pool_threshold_bytes=1) as (running, dispatcher):
        dispatcher.wait_ready("m")
        message = batch(1, "m", [X])
        message.batch.results_by_reference = by_reference
        (output,) = dispatcher.run(message).outputs
        reader = PoolReader(running.settings.shm_dir)
        data = bytes(reader.view(output.reference)) if by_reference else output.inline
    assert data == X.tobytes()


def test_a_result_says_who_ran_it_when_and_with_how_many_rows(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "echo", builtin_config("identity"))
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("echo")
        first = dispatcher.run(batch(7, "echo", [X])).result
        second = dispatcher.run(batch(8, "echo", [X, X])).result
        instance = dispatcher.hellos[0].id
    times = first.times
    assert (first.batch_id, first.first_request, first.requests) == (7, 0, 1)
    assert (first.instance, first.version) == (instance, "1")
    assert (first.executed_rows, second.executed_rows) == (2, 4)
    assert second.execution == first.execution + 1
    assert (
        0 < times.executor_received <= times.input_started <= times.infer_started
        <= times.output_started <= times.executor_sent
    )  # fmt: skip


def test_batches_of_several_dispatchers_with_equal_numbers_do_not_meet(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "m", builtin_config("sleep", sleep_ms=20, instances=2))
    with linked() as (running, one), FakeDispatcher(running.address) as two:
        one.wait_ready("m")
        one.send(batch(1, "m", [X]))
        two.send(batch(1, "m", [X + 10]))
        assert arrays_of(one.result(1))["y"].tolist() == X.tolist()
        assert arrays_of(two.result(1))["y"].tolist() == (X + 10).tolist()


def test_dispatchers_divide_what_it_takes_and_get_it_back(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity", instances=2))
    with linked() as (running, one):
        one.wait_ready("m")
        one.wait_window("m", 4)
        with FakeDispatcher(running.address) as two:
            for dispatcher in (one, two):
                dispatcher.wait_window("m", 2)
        one.wait_window("m", 4)


def test_urgent_batches_overtake_those_that_wait(repository: Path, linked: Any, gate: Any) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(0, "m", [X]))
        gate.wait_for_run()
        urgent = batch(3, "m", [X])
        urgent.batch.priority = 1
        for message in (batch(1, "m", [X]), batch(2, "m", [X]), urgent):
            dispatcher.send(message)
        wait_until(lambda: 'queue_batches{model="m"} 3.0' in running.metrics(), TIMEOUT_S)
        gate.open()
        order = {n: dispatcher.result(n).result.execution for n in range(4)}
    assert order[0] < order[3] < order[1] < order[2]


# shared memory
def test_inputs_are_read_from_the_pool_of_another_process(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        with PayloadPool(running.settings.shm_dir, "sits", "preprocess-1", 1 << 20) as pool:
            slot = pool.allocate(X.nbytes)
            assert slot is not None
            slot.view[:] = X.tobytes()
            message = batch(1, "m", [X])
            message.inputs[0].reference.CopyFrom(slot.ref)
            result = dispatcher.run(message)
            pool.release(slot.ref)
            message.batch.batch_id = 2
            stale = dispatcher.run(message)
    assert arrays_of(result)["y"].tolist() == X.tolist()
    assert stale.result.error.reason == "STALE_PAYLOAD"


def test_outputs_go_by_reference_only_to_those_who_asked_and_a_release_frees_them(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "m", builtin_config("identity", dims=[-1]))
    x = np.arange(700_000, dtype=np.float32).reshape(1, -1)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        hello = dispatcher.hellos[0]
        assert shares_memory(running.settings.shm_dir, hello.shm_probe, hello.shm_nonce)
        assert dispatcher.run(batch(1, "m", [x])).outputs[0].HasField("inline")
        reader = PoolReader(running.settings.shm_dir)
        for number in range(2, 8):  # one fits at a time
            message = batch(number, "m", [x])
            message.batch.results_by_reference = True
            (output,) = dispatcher.run(message).outputs
            assert output.HasField("reference")
            assert bytes(reader.view(output.reference)) == x.tobytes()
            release = Release(instance=hello.id, slots=[output.reference])
            dispatcher.send(LinkMessage(release=release))


def test_a_full_pool_sends_inline(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity", dims=[-1]))
    x = np.zeros((1, 1_100_000), np.float32)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        message = batch(1, "m", [x])
        message.batch.results_by_reference = True
        assert dispatcher.run(message).outputs[0].HasField("inline")
