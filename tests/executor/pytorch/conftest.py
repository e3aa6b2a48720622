"""PyTorch is an optional extra: without it these tests are left out on a laptop, not in CI."""

import os
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from sits_executor.backends.base import LoadSpec
from sits_protos.oip.model_config_pb2 import ModelConfig

_LEFT_OUT = find_spec("torch") is None and os.environ.get("CI") != "true"
collect_ignore_glob = ["test_*.py"] if _LEFT_OUT else []


def pytest_report_header() -> list[str]:
    return ["PyTorch is not installed, its tests are left out: make torch"] if _LEFT_OUT else []


MakeSpec = Callable[..., LoadSpec]


@pytest.fixture
def spec(tmp_path: Path) -> MakeSpec:
    """A load of `filename` in a folder of its own, with this config.pbtxt."""

    def make(
        filename: str,
        config: str = "",
        *,
        gpu: int | None = None,
        instances: int = 1,
        parameters: Mapping[str, Any] | None = None,
    ) -> LoadSpec:
        text = config or (
            "max_batch_size: 8 input { name: 'x' data_type: TYPE_FP32 dims: [4] } "
            "output { name: 'y' data_type: TYPE_FP32 dims: [2] }"
        )
        parsed = text_format.Parse(f"name: 'm' backend: 'pytorch' {text}", ModelConfig())
        for key, value in (parameters or {}).items():
            parsed.parameters[key].string_value = str(value)
        return LoadSpec("m", "1", tmp_path, filename, parsed, instances, 1, gpu)

    return make
