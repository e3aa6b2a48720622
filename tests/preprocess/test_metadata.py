"""Rules of what the front door says about itself and about models."""

import pytest

from sits_core.errors import InvalidArgument, NotFound, Unavailable
from sits_preprocess.metadata import Metadata
from sits_preprocess.testing import FakeCatalog, make_model
from sits_protos.oip import grpc_service_pb2 as pb
from sits_protos.oip.model_config_pb2 import ModelConfig
from sits_protos.v1.link_pb2 import ModelState

LOADING = ModelState.MODEL_STATE_LOADING
FAILED = ModelState.MODEL_STATE_UNAVAILABLE


@pytest.fixture
def catalog() -> FakeCatalog:
    return FakeCatalog(
        make_model("m", "1"),
        make_model("m", "10"),
        make_model("m", "9"),
        make_model("m", "11", LOADING),
        make_model("young", "1", LOADING),
        make_model("broken", "1", FAILED, reason="bad file"),
    )


@pytest.fixture
def metadata(catalog: FakeCatalog) -> Metadata:
    return Metadata(catalog, "0.1.0", client_shm=False)


def ready(metadata: Metadata, name: str, version: str = "") -> bool:
    return metadata.model_ready(pb.ModelReadyRequest(name=name, version=version)).ready


def listed(metadata: Metadata, name: str = "", version: str = "") -> list[tuple[str, str]]:
    models = metadata.statistics_models(pb.ModelStatisticsRequest(name=name, version=version))
    return [(model.name, model.version) for model in models]


# The server


def test_the_server_is_called_sits(metadata: Metadata) -> None:
    answer = metadata.server_metadata()
    assert (answer.name, answer.version) == ("sits", "0.1.0")


def test_only_extensions_that_work_are_advertised(catalog: FakeCatalog) -> None:
    off = set(Metadata(catalog, "0", client_shm=False).server_metadata().extensions)
    on = set(Metadata(catalog, "0", client_shm=True).server_metadata().extensions)
    assert on - off == {"system_shared_memory"}
    assert {"statistics", "model_configuration", "trace", "logging"} <= off
    assert not on & {"cuda_shared_memory", "sequence"}


def test_strict_readiness_needs_every_model(catalog: FakeCatalog) -> None:
    strict, lax = (Metadata(catalog, "0", client_shm=False, strict=s) for s in (True, False))
    assert (strict.server_ready(), lax.server_ready()) == (False, True)
    catalog.known = [make_model("m")]
    assert (strict.server_ready(), lax.server_ready()) == (True, True)
    catalog.known = [make_model("m", state=LOADING)]
    assert (strict.server_ready(), lax.server_ready()) == (False, False)


def test_a_model_unloaded_on_purpose_does_not_count(catalog: FakeCatalog) -> None:
    metadata = Metadata(catalog, "0", client_shm=False)
    gone = make_model("gone", state=FAILED, reason="unloaded")
    catalog.known = [make_model("m"), gone]
    assert metadata.server_ready()
    catalog.known = [gone]
    assert not metadata.server_ready()


@pytest.mark.parametrize("strict", [True, False])
def test_a_server_that_knows_no_model_is_not_ready(strict: bool) -> None:
    assert not Metadata(FakeCatalog(), "0", client_shm=False, strict=strict).server_ready()


# Models


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("m", "", True), ("m", "9", True), ("m", "11", False), ("m", "999", False),
        ("unknown", "", False), ("a/b", "", False), ("young", "", False), ("broken", "1", False),
    ],
)  # fmt: skip
def test_a_model_is_ready_when_it_would_accept_a_request(
    metadata: Metadata, name: str, version: str, expected: bool
) -> None:
    assert ready(metadata, name, version) is expected


@pytest.mark.parametrize(
    ("name", "version"),
    [("", ""), ("m", "abc"), ("m", "1p0"), ("m", "01"), ("m", "-1"), ("a\0", ""), ("n" * 300, "")],
)
def test_a_malformed_name_or_version_is_an_error_even_for_readiness(
    metadata: Metadata, name: str, version: str
) -> None:
    with pytest.raises(InvalidArgument):
        ready(metadata, name, version)


def test_metadata_lists_the_ready_versions_oldest_first(metadata: Metadata) -> None:
    answer = metadata.model_metadata(pb.ModelMetadataRequest(name="m"))
    assert (answer.name, list(answer.versions)) == ("m", ["1", "9", "10"])


def test_metadata_is_what_the_executor_announced_and_stays_untouched(
    metadata: Metadata, catalog: FakeCatalog
) -> None:
    announced = pb.ModelMetadataResponse(name="m", versions=["7"], platform="onnxruntime")
    announced.inputs.add(name="x", datatype="FP32", shape=[-1, 4])
    catalog.known = [make_model("m", "7", metadata=announced), make_model("m", "8")]
    answer = metadata.model_metadata(pb.ModelMetadataRequest(name="m", version="7"))
    assert (answer.platform, list(answer.inputs)) == ("onnxruntime", list(announced.inputs))
    assert (list(answer.versions), list(announced.versions)) == (["7", "8"], ["7"])


def test_config_is_that_of_the_version_asked(metadata: Metadata, catalog: FakeCatalog) -> None:
    catalog.known = [
        make_model("m", version, config=ModelConfig(name="m", max_batch_size=int(version)))
        for version in ("2", "4")
    ]
    sizes = [
        metadata.model_config(pb.ModelConfigRequest(name="m", version=v)).config.max_batch_size
        for v in ("2", "4", "")
    ]
    assert sizes == [2, 4, 4]


@pytest.mark.parametrize(
    ("name", "version", "error"),
    [
        ("unknown", "", NotFound), ("m", "999", NotFound), ("young", "", Unavailable),
        ("broken", "", Unavailable), ("m", "11", Unavailable), ("m", "abc", InvalidArgument),
        ("m", "01", InvalidArgument), ("", "", InvalidArgument), ("a\nb", "", InvalidArgument),
    ],
)  # fmt: skip
def test_metadata_and_config_agree_about_models_that_cannot_answer(
    metadata: Metadata, name: str, version: str, error: type[Exception]
) -> None:
    with pytest.raises(error) as first:
        metadata.model_metadata(pb.ModelMetadataRequest(name=name, version=version))
    with pytest.raises(error) as second:
        metadata.model_config(pb.ModelConfigRequest(name=name, version=version))
    assert str(first.value) == str(second.value)


# Statistics


def test_statistics_of_no_name_are_those_of_all_ready_versions(metadata: Metadata) -> None:
    assert listed(metadata) == [("m", "1"), ("m", "9"), ("m", "10")]


def test_statistics_of_a_name_are_those_of_its_ready_versions(metadata: Metadata) -> None:
    assert listed(metadata, "m") == [("m", "1"), ("m", "9"), ("m", "10")]
    assert listed(metadata, "m", "9") == [("m", "9")]


@pytest.mark.parametrize(
    ("name", "version", "text"),
    [
        ("x", "", "requested model 'x' is not available"),
        ("x", "1", "requested model 'x' is not available"),
        ("m", "999", "requested model version is not available for model 'm'"),
    ],
)
def test_statistics_of_an_unknown_model_are_not_found(
    metadata: Metadata, name: str, version: str, text: str
) -> None:
    with pytest.raises(NotFound, match=f"^{text}$"):
        listed(metadata, name, version)


def test_statistics_of_a_loading_model_are_unavailable(metadata: Metadata) -> None:
    with pytest.raises(Unavailable):
        listed(metadata, "young")


def test_statistics_refuse_a_malformed_version(metadata: Metadata) -> None:
    with pytest.raises(InvalidArgument):
        listed(metadata, "m", "1p0")
