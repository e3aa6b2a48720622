"""What the quick look at an input lets pass, and what it leaves to the thorough one."""

import pytest

from sits_preprocess.fake_engine import model
from sits_preprocess.oip.signature import Signature, signature_of

BYTES_OF = {
    (2, 3, 4): 96,
    (1, 0, 4): -1,
    (1, -1, 4): -1,
    (1, 3, 5): -1,
    (1, 3): -1,
    (1 << 20, 1 << 20, 4): -1,
}


def signature(*dims: int, datatype: str = "FP32") -> Signature:
    return signature_of(
        model("m", [("x", datatype, dims)], [("y", datatype, dims)], max_batch_size=8)
    )


@pytest.mark.parametrize(("shape", "size"), BYTES_OF.items(), ids=str)
def test_the_size_of_a_variable_input_follows_its_shape(shape: tuple[int, ...], size: int) -> None:
    (spec,) = signature(-1, 4).plain
    assert spec.plain_bytes(shape) == size


def test_rows_of_variable_size_are_not_all_alike() -> None:
    assert signature(3, 4).fixed
    assert not signature(-1, 4).fixed


def test_texts_are_always_looked_at() -> None:
    assert signature(3, datatype="BYTES").plain == ()
