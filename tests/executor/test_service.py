"""The executor as a service: real links, real models."""

from pathlib import Path
from typing import Any

import numpy as np

from sits_executor.testing import arrays_of, batch, builtin_config, write_model


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


def test_a_result_says_who_ran_it_when_and_with_how_many_rows(
    repository: Path, linked: Any
) -> None:
    write_model(repository, "echo", builtin_config("identity"))
    with linked() as (_, dispatcher):
        dispatcher.wait_ready("echo")
        x = np.ones((3, 2), np.float32)
        first = dispatcher.run(batch(7, "echo", [x])).result
        second = dispatcher.run(batch(8, "echo", [x, x])).result
        instance = dispatcher.hellos[0].id
    times = first.times
    assert (first.batch_id, first.first_request, first.requests) == (7, 0, 1)
    assert (first.instance, first.version) == (instance, "1")
    assert (first.executed_rows, second.executed_rows) == (3, 6)
    assert second.execution == first.execution + 1
    assert (
        0 < times.executor_received <= times.input_started <= times.infer_started
        <= times.output_started <= times.executor_sent
    )  # fmt: skip
