"""A configuration is completed from the model and checked against it."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from google.protobuf import json_format, text_format

from sits_executor.backends.base import LoadError, Signature, TensorSpec
from sits_executor.contract import contract_of
from sits_executor.repository import given, versions
from sits_executor.repository.check import check
from sits_executor.repository.complete import complete, shares_first_dimension
from sits_executor.repository.describe import metadata_of
from sits_executor.repository.given import Given
from sits_executor.repository.supported import Placement, placement, refuse_unsupported
from sits_protos.oip.model_config_pb2 import ModelConfig, ModelInstanceGroup

BATCHED = Signature(
    (TensorSpec("ids", "INT64", ("batch", "seq")), TensorSpec("mask", "INT64", ("batch", "seq"))),
    (TensorSpec("out", "FP32", ("batch", "seq", 384)),),
)
FIXED = Signature((TensorSpec("x", "FP32", (1, 3)),), (TensorSpec("y", "FP32", (1,)),))
CPU = Placement(1, None)


def completed(text: str = "", signature: Signature | None = BATCHED) -> ModelConfig:
    read = given.from_text(text)
    read.config.name = "m"
    config = complete(read, signature, CPU, default_max_batch=32)
    check(config, signature)
    return config


def test_all_comes_from_the_model_when_nothing_is_written() -> None:
    config = completed()
    assert config.max_batch_size == 32
    assert config.HasField("dynamic_batching")
    assert [(i.name, list(i.dims)) for i in config.input] == [("ids", [-1]), ("mask", [-1])]
    assert [(o.name, list(o.dims)) for o in config.output] == [("out", [-1, 384])]
    assert config.version_policy.latest.num_versions == 1
    group = config.instance_group[0]
    assert (group.name, group.count, group.kind) == ("m_0", 1, ModelInstanceGroup.KIND_CPU)


def test_what_is_written_stays() -> None:
    config = completed(
        'max_batch_size: 4 instance_group { count: 3 } output { name: "out" '
        "data_type: TYPE_FP32 dims: [-1, 384] } sequence_batching {}"
    )
    assert config.max_batch_size == 4
    assert config.instance_group[0].count == 3
    assert not config.HasField("dynamic_batching")


def test_a_written_zero_means_no_batching() -> None:
    assert completed("max_batch_size: 0").max_batch_size == 0
    assert given.from_json('{"max_batch_size": 0}').says_max_batch
    assert given.from_json('{"maxBatchSize": 0}').says_max_batch
    assert not given.from_json('{"backend": "x"}').says_max_batch


def test_written_dims_of_full_rank_mean_no_batching() -> None:
    """Clients were promised these shapes."""
    config = completed('input { name: "ids" data_type: TYPE_INT64 dims: [-1, -1] } '
                       'input { name: "mask" data_type: TYPE_INT64 dims: [-1, -1] }')  # fmt: skip
    assert config.max_batch_size == 0
    assert list(config.output[0].dims) == [-1, -1, 384]


def spec(*shape: Any) -> TensorSpec:
    return TensorSpec("t", "FP32", shape)


@pytest.mark.parametrize(
    ("inputs", "outputs", "batches"),
    [
        ([spec("b", 2)], [spec("b")], True),
        ([spec("b", "n"), spec("b")], [spec("b", "n")], True),
        ([spec("b", 2)], [spec("c", 2)], False),
        ([spec("b", 2), spec(2)], [spec("b")], False),
        ([spec("b", 2), spec()], [spec("b")], False),
        ([spec(None, 2)], [spec(None, 2)], False),
        ([spec(1, 2)], [spec(1, 2)], False),
        ([spec("b", 2)], [spec(2, "b")], False),
        ([spec("b", "b")], [spec("b")], False),
        ([spec("b", 2)], [TensorSpec("t", "FP32", None)], False),
    ],
)
def test_a_model_batches_when_one_named_size_leads_everywhere_and_occurs_nowhere_else(
    inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batches: bool
) -> None:
    assert shares_first_dimension(Signature(tuple(inputs), tuple(outputs))) is batches


@pytest.mark.parametrize(
    ("text", "signature", "problem"),
    [
        ('input { name: "q" data_type: TYPE_INT64 dims: 1 }', BATCHED, "'q' of the config"),
        ('input { name: "ids" data_type: TYPE_INT64 dims: -1 }', BATCHED, "needs input 'mask'"),
        ('input { name: "ids" data_type: TYPE_FP32 dims: -1 }', BATCHED, "TYPE_FP32 in the conf"),
        (
            'output { name: "out" data_type: TYPE_FP32 dims: [-1, 383] }',
            BATCHED,
            r"has dims \[-1, 383\] in the configuration, the model has \[-1, 384\]",
        ),
        ("max_batch_size: 8", FIXED, "without a variable first dimension"),
        ("max_batch_size: -1", FIXED, "expected 0 or more"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: [4, 9] }", BATCHED,
         r"preferred_batch_size is \[4, 9\], expected sizes from 1 to 8"),
        ("max_batch_size: 8 dynamic_batching { preferred_batch_size: -1 }", BATCHED,
         r"preferred_batch_size is \[-1\]"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [0, 3] }', FIXED, "expected sizes above 0"),
        ('input { name: "x" data_type: TYPE_FP32 dims: [-2] }', FIXED, "expected sizes above 0"),
        ('input { name: "x" dims: [1, 3] }', FIXED, "has no data_type"),
        ('input { name: "x" data_type: TYPE_FP32 } input { name: "x" data_type: TYPE_FP32 }',
         FIXED, "needs a name of its own"),
        ('input { name: "x" data_type: TYPE_FP32 dims: 6 reshape { shape: [2, 4] } }',
         FIXED, "cannot be reshaped"),
        ("", None, "names no input"),
    ],
)  # fmt: skip
def test_a_configuration_that_does_not_fit_the_model_is_refused_with_the_reason(
    text: str, signature: Signature | None, problem: str
) -> None:
    with pytest.raises(LoadError, match=problem):
        completed(text, signature)


def test_metadata_shows_the_batch_dimension_and_configuration_does_not() -> None:
    metadata = metadata_of(completed(), ["1", "2"])
    assert [list(t.shape) for t in metadata.inputs] == [[-1, -1], [-1, -1]]
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.outputs] == [
        ("out", "FP32", [-1, -1, 384])
    ]
    assert list(metadata.versions) == ["1", "2"]
    assert [list(t.shape) for t in metadata_of(completed("", FIXED), []).inputs] == [[1, 3]]


def test_a_fallback_is_announced_as_cpu() -> None:
    read = Given(
        text_format.Parse("instance_group { kind: KIND_GPU gpus: 0 }", ModelConfig()), False
    )
    config = complete(read, BATCHED, CPU, 32)
    assert config.instance_group[0].kind == ModelInstanceGroup.KIND_CPU
    assert list(config.instance_group[0].gpus) == []


@pytest.mark.parametrize(
    ("text", "on_gpu", "expected"),
    [
        ("", False, Placement(1, None)),
        ("", True, Placement(1, 0)),
        ("instance_group { count: 2 } instance_group { count: 3 }", False, Placement(5, None)),
        ("instance_group { kind: KIND_GPU gpus: 1 count: 2 }", False, Placement(2, 1)),
        ("instance_group { kind: KIND_CPU }", True, Placement(1, None)),
        ("instance_group { kind: KIND_MODEL }", False, Placement(1, None)),
    ],
)
def test_instances_run_where_the_configuration_says(
    text: str, on_gpu: bool, expected: Placement
) -> None:
    assert placement(text_format.Parse(text, ModelConfig()), on_gpu) == expected


@pytest.mark.parametrize(
    "text",
    [
        "instance_group { kind: KIND_GPU gpus: [0, 1] }",
        "instance_group { kind: KIND_GPU } instance_group { kind: KIND_CPU }",
        "instance_group { count: 100000 }",
        "instance_group { count: -1 }",
    ],
)
def test_one_executor_is_one_device_with_a_bounded_number_of_instances(text: str) -> None:
    with pytest.raises(LoadError, match="instance_group"):
        placement(text_format.Parse(text, ModelConfig()), False)


@pytest.mark.parametrize(
    "text",
    [
        "sequence_batching {}",
        "model_transaction_policy { decoupled: true }",
        'model_operations { op_library_filename: "evil.so" }',
        'model_repository_agents { agents { name: "x" } }',
        "batch_input {}",
        "batch_output {}",
        'input { name: "x" allow_ragged_batch: true }',
        'input { name: "x" is_shape_tensor: true }',
        'output { name: "x" is_shape_tensor: true }',
        "instance_group { passive: true }",
    ],
)
def test_what_is_not_supported_is_refused_by_name(text: str) -> None:
    with pytest.raises(LoadError, match="which SITS does not support"):
        refuse_unsupported(text_format.Parse(text, ModelConfig()))


@pytest.mark.parametrize("text", ["max_batch_size: many", "nonsense: 1", "{", "\0"])
def test_text_that_cannot_be_read_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(LoadError, match=r"config\.pbtxt cannot be read"):
        given.from_text(text)


@pytest.mark.parametrize("text", ["{", "[]", "1", '{"nonsense": 1}', "[" * 100_000])
def test_json_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(LoadError, match="JSON configuration cannot be read"):
        given.from_json(text)


def test_reshape_gives_the_model_its_own_shape() -> None:
    signature = Signature((TensorSpec("x", "FP32", ("b",)),), (TensorSpec("y", "FP32", ("b",)),))
    config = completed(
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 1 reshape {} } '
        'output { name: "y" data_type: TYPE_FP32 dims: 1 reshape {} }',
        signature,
    )
    assert contract_of(config, "1").inputs["x"].inner == ()
    assert [list(t.shape) for t in metadata_of(config, []).inputs] == [[-1, 1]]


@pytest.mark.parametrize(
    ("policy", "chosen"),
    [
        ("", (3,)),
        ("latest { num_versions: 2 }", (2, 3)),
        ("latest { num_versions: 0 }", (3,)),
        ("all {}", (1, 2, 3)),
        ("specific { versions: [3, 1] }", (1, 3)),
    ],
)
def test_the_version_policy_chooses(policy: str, chosen: tuple[int, ...]) -> None:
    config = text_format.Parse(f"version_policy {{ {policy} }}", ModelConfig())
    assert versions.choose(config.version_policy, (1, 2, 3)) == chosen


def test_versions_that_are_not_there_fail_the_load() -> None:
    config = text_format.Parse("version_policy { specific { versions: [4] } }", ModelConfig())
    with pytest.raises(LoadError, match=r"asks for versions \[4\], there are \[1\]"):
        versions.choose(config.version_policy, (1,))
    with pytest.raises(LoadError, match="has no version"):
        versions.choose(ModelConfig().version_policy, ())


def test_a_completed_configuration_survives_json() -> None:
    """It is announced, so every field must be one that readers know."""
    config = completed()
    assert (
        json_format.ParseDict(json.loads(json_format.MessageToJson(config)), ModelConfig())
        == config
    )
