"""The executor as a service: loads, state, health, metrics, spans, drain."""

import socket
import threading
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from sits_core.drain import Drain
from sits_core.settings import SettingsError
from sits_core.testing import free_port, wait_until
from sits_core.tracing import TraceContext
from sits_executor.app import serve
from sits_executor.settings import ExecutorSettings
from sits_executor.testing import (
    TIMEOUT_S,
    FakeDispatcher,
    batch,
    builtin_config,
    write_model,
)
from sits_protos.v1 import control_pb2
from sits_protos.v1.control_pb2_grpc import ControlStub
from sits_protos.v1.link_pb2 import RequestHeader

TOKEN = "a shared one"  # noqa: S105 - of this test

X = np.array([[1, 2], [3, 4]], np.float32)


def control(running: Any) -> ControlStub:
    return ControlStub(grpc.insecure_channel(running.address))


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
        assert running.health() == "NOT_SERVING"
        assert not control(running).GetState(control_pb2.GetStateRequest()).ready
        assert dispatcher.state("slow") == "LOADING"
        gate.open()
        wait_until(lambda: running.health() == "SERVING", TIMEOUT_S)
        assert control(running).GetState(control_pb2.GetStateRequest()).ready
        dispatcher.wait_ready("slow")
        assert dispatcher.state("bad") == "UNAVAILABLE"


def test_metrics_count_real_work(repository: Path, linked: Any) -> None:
    write_model(repository, "m", builtin_config("fail_on"))
    with linked() as (running, dispatcher):
        dispatcher.wait_ready("m")
        dispatcher.run(batch(1, "m", [X, X]))
        dispatcher.run(batch(2, "m", [X, X * 0 + 666]))
        wait_until(lambda: 'sits_executor_batches_total{model="m"} 2.0' in running.metrics())
        shown = running.metrics()
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
        assert running.health() == "NOT_SERVING"
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
        wait_until(lambda: 'queue_batches{model="m"} 2.0' in running.metrics(), TIMEOUT_S)
        running.stop.set()
        reasons = [dispatcher.result(n).result.error.reason for n in (1, 2)]
        gate.open()
        assert not dispatcher.result(0).result.HasField("error")
    assert reasons == ["SHUTTING_DOWN"] * 2


def test_internal_calls_need_a_token_when_there_is_one(repository: Path, executor: Any) -> None:
    with executor(mesh_token=TOKEN) as running:
        wait_until(lambda: running.health() == "SERVING", TIMEOUT_S)
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
