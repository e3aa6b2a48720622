"""Which requests of a model may share a run."""

import pytest

from sits_preprocess.admission import batch_key
from sits_preprocess.fake_engine import model
from sits_preprocess.oip.signature import signature_of
from sits_preprocess.request import ParameterValue, TensorData

SIGNATURE = signature_of(model("m", [("X", "FP32", [2])], [("Y", "FP32", [2])], max_batch_size=8))
INPUTS = (TensorData("X", "FP32", (1, 2), bytes(8)),)

ALL_EQUAL_TO_PYTHON: list[list[ParameterValue]] = [[1, True, 1.0], [0, False, 0.0, -0.0]]


@pytest.mark.parametrize("values", ALL_EQUAL_TO_PYTHON, ids=str)
def test_parameters_that_differ_in_type_or_sign_only_are_not_equal(
    values: list[ParameterValue],
) -> None:
    """A run has one set of parameters: who shares it gets an answer to the first one's."""
    assert len({batch_key(SIGNATURE, INPUTS, {"k": value}) for value in values}) == len(values)


@pytest.mark.parametrize("value", [1, True, 1.5, "text", float("nan")], ids=str)
def test_equal_parameters_in_any_order_are(value: ParameterValue) -> None:
    one, other = {"k": value, "n": 7}, {"n": 7, "k": value}
    assert batch_key(SIGNATURE, INPUTS, one) == batch_key(SIGNATURE, INPUTS, other)
