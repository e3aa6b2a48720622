"""The executor as a service: real links, real models, real faults."""

import random
import socket
import threading
import urllib.request
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from onnx import TensorProto

from sits_channel.pool import PayloadPool
from sits_channel.pool_probe import shares_memory
from sits_channel.pool_reader import PoolReader
from sits_core.clock import now_ns
from sits_core.drain import Drain
from sits_core.settings import SettingsError
from sits_core.testing import free_port, wait_until
from sits_core.tracing import TraceContext
from sits_executor.app import serve
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import (
    TIMEOUT_S,
    FakeDispatcher,
    arrays_of,
    batch,
    builtin_config,
    write_model,
)
from sits_protos.v1 import control_pb2
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import BatchHeader, Cancel, LinkMessage, Release, RequestHeader

X = np.array([[1, 2], [3, 4]], np.float32)
TOKEN = "a shared one"  # noqa: S105 - of this test


def control(running: Any) -> ControlStub:
    return ControlStub(grpc.insecure_channel(running.address))


def health(running: Any) -> str:
    stub = health_pb2_grpc.HealthStub(grpc.insecure_channel(running.address))
    answer = stub.Check(health_pb2.HealthCheckRequest(), wait_for_ready=True, timeout=TIMEOUT_S)
    return health_pb2.HealthCheckResponse.ServingStatus.Name(answer.status)


def metrics(running: Any) -> str:
    with urllib.request.urlopen(running.metrics_url, timeout=TIMEOUT_S) as answer:  # noqa: S310
        return answer.read().decode()


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
        wait_until(lambda: 'queue_batches{model="m"} 3.0' in metrics(running), TIMEOUT_S)
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


# faults


def test_unknown_models_and_versions_are_answered_not_found(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        unknown = dispatcher.run(batch(1, "n" * 20_000, [X]))
        version = dispatcher.run(batch(2, "m", [X], version="9"))
        shown = metrics(running)
    assert unknown.result.error.reason == version.result.error.reason == "NOT_FOUND"
    assert len(unknown.result.error.message.encode()) <= 1000
    assert "nnnn" not in shown, "names from outside are no labels"


def test_a_queue_that_is_full_refuses_at_once(repository: Path, linked: Any, gate: Any) -> None:
    write_model(repository, "m", gate.config)
    with linked(executor_queue_batches=2) as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(0, "m", [X]))
        gate.wait_for_run()
        for number in range(1, 8):
            dispatcher.send(batch(number, "m", [X]))
        refused = [dispatcher.result(n).result.error.reason for n in range(3, 8)]
        gate.open()
        served = [dispatcher.result(n).result.error.reason for n in range(3)]
    assert (served, refused) == ([""] * 3, ["QUEUE_FULL"] * 5)


def test_a_cancelled_batch_that_waits_is_answered_at_once_and_never_runs(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X, X]))
        gate.wait_for_run()
        dispatcher.send(batch(2, "m", [X, X]))
        dispatcher.cancel(2)
        cancelled = dispatcher.result(2)
        assert [r.error.reason for r in cancelled.results] == ["CANCELLED"] * 2
        assert 1 not in dispatcher.results, "it did not wait for the one that runs"
        gate.open()
        assert not dispatcher.result(1).result.HasField("error")
        wait_until(lambda: 'sits_executor_rows_total{model="m"} 4.0' in metrics(running), TIMEOUT_S)


def test_a_batch_is_given_back_while_it_waits_and_not_once_it_runs(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        dispatcher.send(batch(2, "m", [X]))
        for number in (1, 2):
            ask = Cancel(batch_id=number, if_waiting=True)
            dispatcher.send(LinkMessage(cancel=ask))
        assert dispatcher.result(2).result.error.reason == "TAKEN_BACK"
        gate.open()
        assert not dispatcher.result(1).results[0].HasField("error")


def test_a_cancel_of_some_requests_spares_the_others(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        dispatcher.send(batch(2, "m", [X, X + 1, X + 2]))
        dispatcher.cancel(2, 0, 2)
        dispatcher.cancel(99)
        dispatcher.run(batch(3, "unknown", [X]))  # answered: the cancel before it was read
        gate.open()
        result = dispatcher.result(2)
    assert [r.error.reason for r in result.results] == ["CANCELLED", "", "CANCELLED"]
    assert arrays_of(result)["y"].tolist() == (X + 1).tolist()


def test_a_deadline_that_passes_in_the_queue_is_a_deadline_error(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        dispatcher.send(batch(1, "m", [X]))
        gate.wait_for_run()
        soon = RequestHeader(deadline_unix_ns=now_ns() + 50_000_000)
        far = RequestHeader(deadline_unix_ns=now_ns() + 10**16)
        dispatcher.send(batch(2, "m", [X, X], headers=[soon, far]))
        wait_until(lambda: now_ns() > soon.deadline_unix_ns, TIMEOUT_S)
        gate.open()
        result = dispatcher.result(2)
        shown = 'sits_executor_dropped_total{reason="DEADLINE_EXCEEDED_IN_QUEUE"} 1.0'
        wait_until(lambda: shown in metrics(running), TIMEOUT_S)
    assert [r.error.reason for r in result.results] == ["DEADLINE_EXCEEDED_IN_QUEUE", ""]


def test_garbage_on_a_link_is_counted_and_batches_after_it_work(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "m", builtin_config("identity"))
    rng = random.Random(5)
    good = batch(5, "m", [X]).SerializeToString()
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        for _ in range(500):
            dispatcher.send_raw(rng.randbytes(rng.randrange(60)))
            flipped = bytearray(good)
            flipped[rng.randrange(len(good))] ^= 1 << rng.randrange(8)
            dispatcher.send_raw(bytes(flipped))
        after = dispatcher.run(batch(1000, "m", [X]))
        shown = metrics(running)
    assert arrays_of(after)["y"].tolist() == X.tolist()
    assert "sits_executor_malformed_total 0.0" not in shown


def test_a_batch_whose_body_cannot_be_read_is_answered(repository: Path, linked: Any) -> None:
    head = LinkMessage(batch=BatchHeader(batch_id=4, model="m", requests=1)).SerializeToString()
    with linked() as (_, dispatcher):
        dispatcher.send_raw(head + b"\x4a\xff")
        assert dispatcher.result(4).result.error.reason == "INVALID_ARGUMENT"


def test_a_result_larger_than_a_message_is_an_error_and_the_link_stays(
    repository: Path, linked: Any
) -> None:
    wide = builtin_config("identity", dims=[-1])
    wide += '\noutput { name: "z" data_type: TYPE_FP32 dims: [-1] }'
    write_model(repository, "m", wide)
    x = np.zeros((1, 200_000), np.float32)
    with linked(max_message_bytes=1 << 20, executor_pool_bytes=0) as (_, dispatcher):
        dispatcher.wait_ready("m")
        assert dispatcher.run(batch(1, "m", [x])).result.error.reason == "RESULT_TOO_LARGE"
        assert arrays_of(dispatcher.run(batch(2, "m", [x[:, :2]])))["y"].shape == (1, 2)


def test_a_dispatcher_that_leaves_takes_its_waiting_batches_with_it(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, stays):
        stays.wait_ready("m")
        gate.close()
        with FakeDispatcher(running.address) as leaves:
            for number in range(4):
                leaves.send(batch(number, "m", [X]))
            wait_until(lambda: 'queue_batches{model="m"} 3.0' in metrics(running), TIMEOUT_S)
        wait_until(lambda: "sits_executor_links 1.0" in metrics(running), TIMEOUT_S)
        wait_until(lambda: 'queue_batches{model="m"} 0.0' in metrics(running), TIMEOUT_S)
        gate.open()
        assert stays.run(batch(1, "m", [X])).result.execution == 2, "one was already running"


def test_many_links_open_and_close_without_leaving_threads(repository: Path, linked: Any) -> None:
    with linked() as (running, _):
        wait_until(lambda: health(running) == "SERVING", TIMEOUT_S)
        before = threading.active_count()
        for _ in range(20):
            with FakeDispatcher(running.address):
                pass
        wait_until(lambda: "sits_executor_links 1.0" in metrics(running), TIMEOUT_S)
        # The server keeps the threads of its pool; each link's own reader ends.
        wait_until(lambda: _link_threads() <= 2, TIMEOUT_S)
        assert threading.active_count() <= before + 40


def test_the_executor_stops_in_time_with_fifty_links_open(repository: Path, executor: Any) -> None:
    with executor() as running:
        channel = grpc.insecure_channel(running.address)
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        link = channel.stream_stream("/sits.v1.Execute/Link", None, None)
        go = threading.Event()
        calls = [link(iter(lambda: go.wait() and b"", b"")) for _ in range(50)]
        assert all(LinkMessage.FromString(next(call)).HasField("hello") for call in calls)
        started_ns = now_ns()
        running.stop.set()
        running.thread.join(TIMEOUT_S)
        took_s = (now_ns() - started_ns) / 1e9
        for call in calls:
            with pytest.raises(grpc.RpcError):
                list(call)
        go.set()
        channel.close()
    assert took_s < running.settings.drain_grace_s + 10


def _link_threads() -> int:
    return sum(thread.name.startswith("link ") for thread in threading.enumerate())


# control, health, metrics, drain


def test_control_loads_unloads_and_tells_dispatchers(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity"))
    with linked(executor_load="none") as (running, dispatcher):
        stub = control(running)
        assert dispatcher.state("m") == ""
        listed = stub.ListRepository(control_pb2.ListRepositoryRequest()).models
        assert [(m.name, m.state) for m in listed] == [("m", 0)]
        stub.LoadModel(control_pb2.LoadModelRequest(model="m"))
        dispatcher.wait_ready("m")
        ready = stub.ListRepository(control_pb2.ListRepositoryRequest(ready_only=True)).models
        assert [(m.name, m.version) for m in ready] == [("m", "1")]
        stub.UnloadModel(control_pb2.UnloadModelRequest(model="m"))
        dispatcher.wait(lambda: dispatcher.state("m") == "UNAVAILABLE", "unloaded")
        result = dispatcher.run(batch(1, "m", [X]))
    assert result.result.error.reason == "MODEL_NOT_READY"
    revisions = [catalog.revision for catalog in dispatcher.catalogs]
    assert revisions == sorted(revisions)


@pytest.mark.parametrize(
    ("request_fields", "code", "text"),
    [
        ({"model": "nobody"}, "NOT_FOUND", "not in the model repository"),
        ({"model": "../x"}, "INVALID_ARGUMENT", "invalid model name"),
        ({"model": "n" * 20_000}, "INVALID_ARGUMENT", "invalid model name"),
        ({"model": "m", "config_json": "{"}, "INVALID_ARGUMENT", "JSON configuration"),
        ({"model": "m", "files": {"../x": b""}}, "INVALID_ARGUMENT", "invalid file path"),
        ({"model": "m", "files": {"1/m.pkl": b""}}, "INVALID_ARGUMENT", "pickled"),
    ],
)
def test_a_load_that_fails_says_why(
    request_fields: Any, code: str, text: str, repository: Path, linked: Any
) -> None:
    write_model(repository, "m", builtin_config("identity"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        with pytest.raises(grpc.RpcError) as caught:
            control(running).LoadModel(control_pb2.LoadModelRequest(**request_fields))
        assert dispatcher.state("m") == "READY"
    assert caught.value.code().name == code
    assert text in caught.value.details()


def test_a_load_that_takes_longer_than_its_caller_waits_goes_on(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    gate.close()
    with linked(executor_load="none") as (running, dispatcher):
        with pytest.raises(grpc.RpcError) as caught:
            control(running).LoadModel(control_pb2.LoadModelRequest(model="m"), timeout=0.3)
        assert caught.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        gate.open()
        dispatcher.wait_ready("m")


def test_a_reload_under_load_loses_no_batch(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("sleep", sleep_ms=2, instances=2))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        stub, stop = control(running), threading.Event()

        def reload() -> None:
            while not stop.is_set():
                stub.LoadModel(control_pb2.LoadModelRequest(model="m"))

        reloading = threading.Thread(target=reload)
        reloading.start()
        results = [dispatcher.run(batch(n, "m", [X])) for n in range(60)]
        stop.set()
        reloading.join(TIMEOUT_S)
    assert not [r.result.error for r in results if r.result.HasField("error")]
    assert all(len(answers) == 1 for answers in dispatcher.results.values())


def test_state_shows_models_and_linked_dispatchers(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        dispatcher.run(batch(1, "m", [X]))
        state = control(running).GetState(control_pb2.GetStateRequest())
    assert (state.self.id, state.self.device) == (dispatcher.hellos[0].id, "cpu:0")
    assert [(m.name, m.version) for m in state.models] == [("m", "1")]
    assert [(p.hello.id, p.batches_total, p.connected) for p in state.peers] == [
        ("dispatcher-test", 1, True)
    ]
    assert not state.redis_configured


def test_health_is_ready_once_the_models_of_the_start_are_loaded_or_failed(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "bad", "nonsense")
    write_model(repository, "slow", gate.config)
    gate.close()
    with linked() as (running, dispatcher):
        gate.wait_for_run()
        assert health(running) == "NOT_SERVING"
        assert not control(running).GetState(control_pb2.GetStateRequest()).ready
        assert dispatcher.state("slow") == "LOADING"
        gate.open()
        wait_until(lambda: health(running) == "SERVING", TIMEOUT_S)
        assert control(running).GetState(control_pb2.GetStateRequest()).ready
        dispatcher.wait_ready("slow")
        assert dispatcher.state("bad") == "UNAVAILABLE"


def test_metrics_count_real_work(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("fail_on"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        dispatcher.run(batch(1, "m", [X, X]))
        dispatcher.run(batch(2, "m", [X, X * 0 + 666]))
        wait_until(lambda: 'sits_executor_batches_total{model="m"} 2.0' in metrics(running))
        shown = metrics(running)
    for line in (
        'sits_executor_run_seconds_count{model="m"} 2.0',
        'sits_executor_failed_runs_total{model="m"} 2.0',
        'sits_executor_errors_total{model="m",reason="MODEL_FAILED"} 1.0',
        'sits_executor_queue_batches{model="m"} 0.0',
        'sits_executor_model_ready{model="m"} 1.0',
    ):
        assert line in shown


def test_spans_can_be_asked_for(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("identity"))
    trace_id = b"t" * 16
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        header = RequestHeader(trace_context=TraceContext(trace_id, b"s" * 8).to_wire())
        dispatcher.run(batch(1, "m", [X], headers=[header]))
        ask = control_pb2.GetSpansRequest(trace_id=trace_id)
        stub = control(running)
        wait_until(lambda: len(stub.GetSpans(ask).spans) == 4, TIMEOUT_S)
        names = [span.name for span in stub.GetSpans(ask).spans]
    assert names == ["executor.queue", "executor.input", "executor.infer", "executor.output"]


def test_a_drain_tells_dispatchers_finishes_accepted_work_and_ends(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        for number in range(3):
            dispatcher.send(batch(number, "m", [X]))
        gate.wait_for_run()
        control(running).Drain(control_pb2.DrainRequest())
        dispatcher.wait(lambda: dispatcher.hellos[-1].draining, "hello that says draining")
        assert health(running) == "NOT_SERVING"
        assert control(running).GetState(control_pb2.GetStateRequest()).self.draining
        gate.open()
        assert [dispatcher.result(n).result.HasField("error") for n in range(3)] == [False] * 3
        running.thread.join(TIMEOUT_S)
        assert not running.thread.is_alive()


def test_after_the_grace_what_still_waits_is_refused_as_unavailable(
    repository: Path, linked: Any, gate: Any
) -> None:
    write_model(repository, "m", gate.config)
    with linked(drain_grace_s=0.05) as (running, dispatcher):
        dispatcher.wait_ready("m")
        gate.close()
        for number in range(3):
            dispatcher.send(batch(number, "m", [X]))
        wait_until(lambda: 'queue_batches{model="m"} 2.0' in metrics(running), TIMEOUT_S)
        running.stop.set()
        reasons = [dispatcher.result(n).result.error.reason for n in (1, 2)]
        gate.open()
        assert not dispatcher.result(0).result.HasField("error")
    assert reasons == ["SHUTTING_DOWN"] * 2


def test_internal_calls_need_a_token_when_there_is_one(repository: Path, executor: Any) -> None:
    with executor(mesh_token=TOKEN) as running:
        wait_until(lambda: health(running) == "SERVING", TIMEOUT_S)
        with pytest.raises(grpc.RpcError) as caught:
            control(running).GetState(control_pb2.GetStateRequest())
        assert caught.value.code() == grpc.StatusCode.UNAUTHENTICATED
        with FakeDispatcher(running.address, (("authorization", f"Bearer {TOKEN}"),)) as dispatcher:
            assert dispatcher.hellos


def test_wrong_settings_stop_the_start_and_name_the_variable(tmp_path: Path) -> None:
    def start(**values: Any) -> None:
        known = {"executor_metrics_bind": f"127.0.0.1:{free_port()}", "shm_dir": str(tmp_path),
                 "executor_pool_bytes": 0}  # fmt: skip
        serve(ExecutorSettings(**(known | values)), Drain())

    with pytest.raises(SettingsError, match="SITS_MESH_TOKEN"):
        start(executor_bind="0.0.0.0:0")
    with pytest.raises(SettingsError, match=r"SITS_EXECUTOR_MODEL_REPOSITORY=.*no such folder"):
        start(executor_model_repository=str(tmp_path / "none"))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(SettingsError, match=f"cannot listen on {bind}"):
            start(executor_bind=bind, executor_model_repository=str(tmp_path))
