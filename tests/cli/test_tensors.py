"""What stands after `--input` becomes an array that fits the model, or a clear refusal."""

from pathlib import Path

import numpy as np
import pytest

from sits_cli.tensors import WrongInput, assignments, random, read


def test_json_takes_the_models_datatype() -> None:
    array = read("x", "[[1, 2]]", "FP32", [-1, 2])
    assert array.dtype == np.float32
    assert array.tolist() == [[1.0, 2.0]]


def test_a_left_out_batch_dimension_is_added() -> None:
    assert read("x", "[1, 2]", "INT64", [-1, 2]).shape == (1, 2)
    assert read("x", "[1, 2]", "INT64", [2]).shape == (2,)


def test_text_becomes_bytes() -> None:
    array = read("x", '["añb", ""]', "BYTES", [2])
    assert array.tolist() == ["añb".encode(), b""]


@pytest.mark.parametrize(
    ("datatype", "text"),
    [("INT8", "[300]"), ("INT32", "[1.5]"), ("UINT8", "[-1]"), ("FP32", '["a"]'),
     ("BYTES", "[1]"), ("FP32", "[[1], [2, 3]]"), ("FP32", "[1,"), ("BOOL", "[2]"),
     ("FP32", "null")],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused_naming_the_input(datatype: str, text: str) -> None:
    with pytest.raises(WrongInput, match="'x'"):
        read("x", text, datatype, [-1])


def test_raw_bytes_are_little_endian_and_shaped(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(np.arange(6, dtype="<i2").tobytes())
    assert read("x", f"@{file}", "INT16", [-1, 3]).tolist() == [[0, 1, 2], [3, 4, 5]]


def test_raw_bytes_of_the_wrong_length_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(bytes(7))
    with pytest.raises(WrongInput, match=r"multiple of 6 bytes for INT16.*got 7"):
        read("x", f"@{file}", "INT16", [-1, 3])


def test_a_file_is_one_element_of_a_bytes_input(tmp_path: Path) -> None:
    file = tmp_path / "x.bin"
    file.write_bytes(b"\x00\xff")
    array = read("x", f"@{file}", "BYTES", [-1, 1])
    assert array.shape == (1, 1)
    assert array[0, 0] == b"\x00\xff"


def test_npy_and_json_files_are_read(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([[1, 2]]))
    (tmp_path / "x.json").write_text("[[1, 2]]")
    for name in ("x.npy", "x.json"):
        assert read("x", f"@{tmp_path / name}", "FP32", [-1, 2]).tolist() == [[1, 2]]


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{}]), allow_pickle=True)
    with pytest.raises(WrongInput, match="pickle"):
        read("x", f"@{tmp_path / 'x.npy'}", "FP32", [-1])


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongInput, match=r"cannot read .*nothing: No such file"):
        read("x", f"@{tmp_path / 'nothing'}", "FP32", [-1])


def test_assignments_are_split_at_the_first_equals_sign() -> None:
    assert assignments(["a=@b=c", "d=[1]"]) == {"a": "@b=c", "d": "[1]"}


@pytest.mark.parametrize("texts", [["a"], ["=1"], ["a=1", "a=2"]])
def test_other_assignments_are_refused(texts: list[str]) -> None:
    with pytest.raises(WrongInput):
        assignments(texts)


@pytest.mark.parametrize(
    ("datatype", "kind"),
    [("FP32", "f"), ("FP16", "f"), ("INT64", "i"), ("UINT8", "u"), ("BOOL", "b"), ("BYTES", "O")],
)
def test_random_values_have_the_models_type_and_a_shape_without_unknowns(
    datatype: str, kind: str
) -> None:
    made = random(datatype, [-1, 3, -1])
    assert (made.shape, made.dtype.kind) == ((1, 3, 1), kind)
