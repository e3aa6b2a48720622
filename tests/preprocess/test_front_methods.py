"""The methods that do not infer, through the stock client."""

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from sits_preprocess.fake_engine import FakeEngine, model
from sits_protos.v1.link_pb2 import ModelState

SERVING, NOT_SERVING = (
    health_pb2.HealthCheckResponse.SERVING,
    health_pb2.HealthCheckResponse.NOT_SERVING,
)
SERVICES = ("", "inference.GRPCInferenceService", "sits.v1.Inference")


class TestServer:
    def test_it_is_live_and_ready_with_a_ready_model(self, served) -> None:
        client = served.client()
        assert client.is_server_live()
        assert client.is_server_ready()

    def test_it_is_live_but_not_ready_without_one(self, serve) -> None:
        served = serve(engine=FakeEngine())
        assert served.client().is_server_live()
        assert not served.client().is_server_ready()

    def test_draining_makes_it_unready_and_refuses_new_requests(self, served) -> None:
        served.front.servicer.drain()
        client = served.client()
        assert client.is_server_live()
        assert not client.is_server_ready()
        with pytest.raises(InferenceServerException, match="is shutting down") as caught:
            served.infer("any_INT8", np.zeros(1, np.int8))
        assert caught.value.status() == "StatusCode.UNAVAILABLE"

    def test_leaving_makes_it_unready_and_still_takes_requests(self, served) -> None:
        served.front.servicer.leave()
        assert not served.client().is_server_ready()
        assert served.infer("any_INT8", np.ones(1, np.int8)).as_numpy("OUTPUT0").tolist() == [1]

    def test_metadata_advertises_only_what_works(self, serve) -> None:
        metadata = serve().client().get_server_metadata()
        assert metadata.name == "sits"
        assert {"statistics", "classification", "model_repository"} <= set(metadata.extensions)
        assert not {"sequence", "system_shared_memory"} & set(metadata.extensions)
        shared = serve(preprocess_allow_client_shm=True).client().get_server_metadata()
        assert "system_shared_memory" in shared.extensions


class TestModels:
    def test_metadata_and_config_are_those_announced(self, served) -> None:
        client = served.client()
        metadata = client.get_model_metadata("rows")
        assert list(metadata.versions) == ["1"]
        assert list(metadata.inputs[0].shape) == [-1, 4]
        config = client.get_model_config("rows").config
        assert config.max_batch_size == 8
        assert list(config.input[0].dims) == [4]

    @pytest.mark.parametrize("method", ["ModelMetadata", "ModelConfig", "ModelStatistics"])
    @pytest.mark.parametrize(
        ("name", "version", "code"),
        [
            ("nope", "", "NOT_FOUND"),
            ("rows", "999", "NOT_FOUND"),
            ("rows", "abc", "INVALID_ARGUMENT"),
            ("a/b", "", "NOT_FOUND"),
            ("loading", "", "UNAVAILABLE"),
        ],
    )
    def test_unknown_malformed_and_unready_are_told_apart(
        self, serve, method: str, name: str, version: str, code: str
    ) -> None:
        loading = ModelState.MODEL_STATE_LOADING
        served = serve(model("rows", [], []), model("loading", [], [], state=loading))
        request = getattr(pb, f"{method}Request")(name=name, version=version)
        with pytest.raises(grpc.RpcError) as caught:
            getattr(served.client()._client_stub, method)(request, timeout=10)
        assert caught.value.code().name == code

    def test_readiness_of_an_unknown_model_is_false_so_that_clients_can_poll(self, served) -> None:
        client = served.client()
        assert client.is_model_ready("rows")
        assert client.is_model_ready("rows", "1")
        assert not client.is_model_ready("rows", "2")
        assert not client.is_model_ready("nope")

    def test_statistics_count_real_requests(self, served) -> None:
        x = np.zeros((3, 4), np.float32)
        for _ in range(4):
            served.infer("rows", x)
        stats = served.client().get_inference_statistics("rows").model_stats[0]
        assert stats.inference_count == 12
        assert stats.inference_stats.success.count == 4
        assert stats.inference_stats.success.ns > 0

    def test_the_index_lists_what_is_announced_while_no_dispatcher_answers(self, served) -> None:
        index = served.client().get_model_repository_index()
        assert {"rows", "two"} <= {m.name for m in index.models}
        assert {m.state for m in index.models} == {"READY"}


def test_bytes_that_are_no_message_are_refused(served) -> None:
    with grpc.insecure_channel(served.address) as channel:
        for name in ("ModelMetadata", "RepositoryIndex", "ServerReady"):
            call = channel.unary_unary(f"/inference.GRPCInferenceService/{name}")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff\xff", timeout=10)
            assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert f"expected a inference.{name}Request message" in caught.value.details()


class TestHealth:
    @pytest.mark.parametrize("service", SERVICES)
    def test_it_is_the_servers_readiness(self, served, service: str) -> None:
        with grpc.insecure_channel(served.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service=service)
            assert stub.Check(request, timeout=10).status == SERVING
            served.front.servicer.drain()
            assert stub.Check(request, timeout=10).status == NOT_SERVING

    def test_unknown_services_are_not_found(self, served) -> None:
        with grpc.insecure_channel(served.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            with pytest.raises(grpc.RpcError) as caught:
                stub.Check(health_pb2.HealthCheckRequest(service="nope"), timeout=10)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND

    def test_watchers_hear_of_changes_and_only_of_changes(self, serve) -> None:
        served = serve(engine=FakeEngine())
        with grpc.insecure_channel(served.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=20
            )
            assert next(watch).status == NOT_SERVING
            served.front.health.refresh()
            served.engine.catalog.known = [model("m", [], [])]
            served.front.health.refresh()
            assert next(watch).status == SERVING
            served.front.servicer.drain()
            assert next(watch).status == NOT_SERVING
            watch.cancel()
        served.until(lambda: served.front.health.watchers == 0)

    def test_watchers_hear_that_the_server_stops(self, served) -> None:
        with grpc.insecure_channel(served.address) as channel:
            watch = health_pb2_grpc.HealthStub(channel).Watch(
                health_pb2.HealthCheckRequest(), timeout=20
            )
            assert next(watch).status == SERVING
            served.front.servicer.drain()
            served.front.health.end()
            assert next(watch).status == NOT_SERVING
            with pytest.raises(grpc.RpcError, match="shutting down") as caught:
                next(watch)
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE


class TestReflection:
    def ask(self, served, **request):
        with grpc.insecure_channel(served.address) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            question = reflection_pb2.ServerReflectionRequest(**request)
            return next(stub.ServerReflectionInfo(iter([question]), timeout=10))

    def test_it_is_off_by_default(self, served) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            self.ask(served, list_services="")
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED

    def test_switched_on_it_shows_the_services_and_their_files(self, serve) -> None:
        served = serve(reflection=True)
        listed = self.ask(served, list_services="").list_services_response.service
        assert set(SERVICES[1:]) <= {service.name for service in listed}
        for name in SERVICES[1:]:
            found = self.ask(served, file_containing_symbol=name)
            assert found.file_descriptor_response.file_descriptor_proto
