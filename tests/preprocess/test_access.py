"""Who may call what, and which tenant a request is accounted to."""

import json

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from sits_core.errors import PermissionDenied, Unauthenticated
from sits_core.settings import SettingsError
from sits_preprocess.access import Access, read_api_keys

X = np.zeros(1, np.int8)
ADMIN = "let me in"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}


@pytest.fixture
def keys_file(tmp_path) -> str:
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"key-of-gold": "gold", "key-of-acme": "acme"}))
    return str(path)


def tenant(served) -> str:
    return served.engine.taken[-1].tenant


class TestTenants:
    def test_the_default_is_bronze(self, served) -> None:
        served.infer("any_INT8", X)
        assert tenant(served) == "bronze"

    def test_header_and_parameter_name_it_and_the_parameter_wins(self, served) -> None:
        served.infer("any_INT8", X, headers={"sits-tenant": "Gold"})
        assert tenant(served) == "gold"
        served.infer("any_INT8", X, parameters={"sits_tenant": "silver"})
        assert tenant(served) == "silver"
        served.infer(
            "any_INT8", X, headers={"sits-tenant": "gold"}, parameters={"sits_tenant": "silver"}
        )
        assert tenant(served) == "silver"
        assert not served.engine.taken[-1].parameters

    def test_tenant_and_outcome_are_metric_labels(self, served) -> None:
        served.infer("any_INT8", X, headers={"sits-tenant": "gold"})
        labels = {"model": "any_INT8", "tenant": "gold"}
        assert served.metric("sits_requests_total", outcome="OK", **labels) == 1
        assert served.metric("sits_request_seconds_count", **labels) == 1

    def test_invented_names_do_not_pile_up_as_series(self, served) -> None:
        for number in range(300):
            served.infer("any_INT8", X, headers={"sits-tenant": f"t{number}"})
        tenants = {
            s.labels["tenant"] for m in served.registry.collect() for s in m.samples
            if s.name == "sits_requests_total"
        }  # fmt: skip
        assert len(tenants) <= 201  # with the one that all others share
        assert served.metric("sits_requests_total", model="other", tenant="other", outcome="OK") > 0


class TestApiKeys:
    def test_the_key_decides_the_tenant(self, serve, keys_file: str) -> None:
        served = serve(preprocess_api_keys_file=keys_file)
        served.infer("any_INT8", X, headers={"authorization": "Bearer key-of-acme"})
        assert tenant(served) == "acme"

    @pytest.mark.parametrize(
        "headers", [{}, {"authorization": "Bearer nope"}, {"authorization": ""}]
    )
    def test_without_a_known_key_nothing_about_models_is_told(
        self, serve, keys_file: str, headers: dict[str, str]
    ) -> None:
        served = serve(preprocess_api_keys_file=keys_file)
        client = served.client()
        for attempt in (
            lambda: served.infer("any_INT8", X, headers=headers),
            lambda: served.infer("unknown", X, headers=headers),
            lambda: client.get_model_metadata("any_INT8", headers=headers),
            lambda: client.get_model_repository_index(headers=headers),
            lambda: client.get_inference_statistics(headers=headers),
        ):
            with pytest.raises(InferenceServerException) as caught:
                attempt()
            assert caught.value.status() == "StatusCode.UNAUTHENTICATED"
        assert client.is_server_live(headers=headers)
        assert client.is_server_ready(headers=headers)

    def test_streams_need_a_key_too(self, serve, keys_file: str) -> None:
        served = serve(preprocess_api_keys_file=keys_file)
        with grpc.insecure_channel(served.address) as channel:
            for path in ("/inference.GRPCInferenceService/ModelStreamInfer",
                         "/sits.v1.Inference/InferBatches"):  # fmt: skip
                call = channel.stream_stream(path)(iter(()), timeout=10)
                with pytest.raises(grpc.RpcError) as caught:
                    list(call)
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED

    def test_a_key_cannot_be_used_for_another_tenant(self, serve, keys_file: str) -> None:
        served = serve(preprocess_api_keys_file=keys_file)
        headers = {"authorization": "Bearer key-of-acme", "sits-tenant": "gold"}
        with pytest.raises(InferenceServerException) as caught:
            served.infer("any_INT8", X, headers=headers)
        assert caught.value.status() == "StatusCode.PERMISSION_DENIED"

    @pytest.mark.parametrize("content", ["", "[]", "{}", '{"k": 5}', '{"k": "no such name!"}'])
    def test_a_file_that_is_not_keys_stops_the_start(self, tmp_path, content: str) -> None:
        path = tmp_path / "keys.json"
        path.write_text(content)
        with pytest.raises(SettingsError, match="SITS_PREPROCESS_API_KEYS_FILE"):
            read_api_keys(str(path))

    def test_a_missing_file_stops_the_start(self) -> None:
        with pytest.raises(SettingsError, match="SITS_PREPROCESS_API_KEYS_FILE"):
            read_api_keys("/nowhere/keys.json")


CONTROL_CALLS = [
    ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="any_INT8")),
    ("RepositoryModelLoad", pb.RepositoryModelLoadRequest(model_name="unknown")),
    ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="any_INT8")),
    ("RepositoryModelUnload", pb.RepositoryModelUnloadRequest(model_name="unknown")),
    ("SystemSharedMemoryRegister", pb.SystemSharedMemoryRegisterRequest(name="a", key="/b")),
    ("SystemSharedMemoryUnregister", pb.SystemSharedMemoryUnregisterRequest()),
    ("CudaSharedMemoryRegister", pb.CudaSharedMemoryRegisterRequest(name="a")),
    ("CudaSharedMemoryUnregister", pb.CudaSharedMemoryUnregisterRequest()),
]
ONE_LOG = {"log_info": pb.LogSettingsRequest.SettingValue(bool_param=True)}
ONE_RATE = {"trace_rate": pb.TraceSettingRequest.SettingValue(value=["5"])}
SETTINGS_CALLS = [
    ("LogSettings", pb.LogSettingsRequest, ONE_LOG),
    ("TraceSetting", pb.TraceSettingRequest, ONE_RATE),
]


def call(served, name: str, request, headers: dict[str, str]) -> tuple[grpc.StatusCode, str]:
    method = getattr(served.client()._client_stub, name)
    try:
        method(request, metadata=tuple(headers.items()), timeout=10)
    except grpc.RpcError as error:
        return error.code(), error.details()
    return grpc.StatusCode.OK, ""


class TestControlCalls:
    @pytest.mark.parametrize(("name", "request_"), CONTROL_CALLS)
    def test_they_need_the_admin_token(self, serve, name: str, request_) -> None:
        served = serve(admin_token=ADMIN)
        refusals = {
            call(served, name, request_, headers)
            for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": ADMIN})
        }
        assert {code for code, _ in refusals} == {grpc.StatusCode.UNAUTHENTICATED}
        assert len(refusals) == 1
        assert call(served, name, request_, AS_ADMIN)[0] is not grpc.StatusCode.UNAUTHENTICATED

    @pytest.mark.parametrize(("name", "kind", "change"), SETTINGS_CALLS)
    def test_settings_may_be_read_by_all_and_changed_by_the_admin(
        self, serve, name: str, kind, change
    ) -> None:
        served = serve(admin_token=ADMIN)
        assert call(served, name, kind(), {})[0] is grpc.StatusCode.OK
        assert call(served, name, kind(settings=change), {})[0] is grpc.StatusCode.UNAUTHENTICATED
        assert call(served, name, kind(settings=change), AS_ADMIN)[0] is grpc.StatusCode.OK

    def test_without_a_token_they_work_on_loopback_only(self) -> None:
        def access(loopback: bool) -> Access:
            return Access({}, None, loopback=loopback, default_tenant="bronze")

        access(True).require_admin({})
        with pytest.raises(PermissionDenied, match="control calls are off"):
            access(False).require_admin({})

    def test_on_loopback_without_tokens_everything_works(self, served) -> None:
        code, _ = call(served, "RepositoryModelLoad", CONTROL_CALLS[0][1], {})
        assert code is grpc.StatusCode.UNAVAILABLE  # allowed, but there is no dispatcher here

    def test_off_loopback_without_a_token_they_are_off(self, serve) -> None:
        served = serve(preprocess_bind="0.0.0.0:0")
        for name, request in CONTROL_CALLS:
            assert call(served, name, request, {})[0] is grpc.StatusCode.PERMISSION_DENIED
        served.infer("any_INT8", X)

    def test_the_admin_token_opens_what_keys_close(self, serve, keys_file: str) -> None:
        served = serve(preprocess_api_keys_file=keys_file, admin_token=ADMIN)
        served.infer("any_INT8", X, headers=AS_ADMIN)
        assert tenant(served) == "bronze"
        with pytest.raises(InferenceServerException) as caught:
            served.client().load_model("any_INT8", headers={"authorization": "Bearer key-of-gold"})
        assert caught.value.status() == "StatusCode.UNAUTHENTICATED"


def test_keys_are_not_kept_in_clear(keys_file: str) -> None:
    keys = read_api_keys(keys_file)
    assert b"key-of-gold" not in keys
    assert sorted(keys.values()) == ["acme", "gold"]
    with pytest.raises(Unauthenticated):
        Access(keys, None, loopback=True, default_tenant="bronze").require_client({})
