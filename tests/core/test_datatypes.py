"""Arrays become packed little-endian bytes and come back equal, however they lie in memory."""

import struct

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sits_core.datatypes import (
    BYTES,
    NUMPY_TYPES,
    Array,
    decode,
    decode_bytes,
    element_size,
    encode,
    encode_bytes,
    from_numpy,
)
from sits_core.errors import InvalidArgument

FIXED = list(NUMPY_TYPES)
MULTI_BYTE = [name for name, dtype in NUMPY_TYPES.items() if dtype.itemsize > 1]
VALUES = np.arange(24).reshape(2, 3, 4)

LAYOUTS = {
    "contiguous": lambda a: a,
    "transposed": lambda a: a.T,
    "channels first": lambda a: a.transpose(2, 0, 1),
    "every second": lambda a: a[:, ::2, ::3],
    "reversed": lambda a: a[::-1, :, ::-1],
    "fortran": np.asfortranarray,
    "broadcast": lambda a: np.broadcast_to(a[:, :1], (2, 5, 4)),
    "0-d": lambda a: a[1, 2, 3],
    "one element": lambda a: a[1:, 2:, 3:],
    "empty": lambda a: a[:0],
    "unaligned": lambda a: np.frombuffer(b"x" + a.tobytes(), a.dtype, offset=1).reshape(a.shape),
}


def same(left: Array, right: Array) -> bool:
    """Equal in shape and in every bit, NaN included."""
    return left.shape == right.shape and left.tobytes() == right.astype(left.dtype).tobytes()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("datatype", FIXED)
def test_every_datatype_survives_every_memory_layout(datatype: str, layout: str) -> None:
    array = np.asarray(LAYOUTS[layout](VALUES.astype(NUMPY_TYPES[datatype])))
    back = decode(encode(array), datatype, array.shape)
    assert back.dtype == NUMPY_TYPES[datatype]
    assert same(back, array)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("datatype", [name for name in MULTI_BYTE if name != "BF16"])
def test_big_endian_arrays_are_sent_little_endian(datatype: str, layout: str) -> None:
    big = VALUES.astype(NUMPY_TYPES[datatype].newbyteorder(">"))
    array = np.asarray(LAYOUTS[layout](big))
    assert from_numpy(array.dtype) == datatype
    assert same(decode(encode(array), datatype, array.shape), array)


@pytest.mark.parametrize("datatype", FIXED)
def test_a_numpy_type_has_one_datatype_and_back(datatype: str) -> None:
    assert from_numpy(NUMPY_TYPES[datatype]) == datatype
    assert element_size(datatype) == NUMPY_TYPES[datatype].itemsize


def test_known_bits() -> None:
    assert encode(np.array([1, -2], dtype=">i4")) == struct.pack("<ii", 1, -2)
    assert encode(np.float64(1.5)) == struct.pack("<d", 1.5)
    assert encode(np.array([1.0], dtype=ml_dtypes.bfloat16)) == b"\x80\x3f"
    assert encode(np.array([True, False])) == b"\x01\x00"


@pytest.mark.parametrize("dtype", ["complex64", "datetime64[s]", "V4"])
def test_a_type_the_protocol_lacks_is_refused(dtype: str) -> None:
    with pytest.raises(TypeError, match="no Open Inference Protocol datatype"):
        from_numpy(np.dtype(dtype))


def test_an_unknown_datatype_is_named_with_those_that_are_known() -> None:
    with pytest.raises(InvalidArgument, match=r"unknown datatype 'FP8'.*FP16.*BYTES"):
        element_size("FP8")
    assert element_size(BYTES) is None


def test_what_is_decoded_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        decode(b"\x01\x02", "UINT8", (2,))[0] = 9  # type: ignore[index]


# BYTES


NOT_UTF8 = [b"", b"\xff\xfe\x00", b"\x00", b"a\x00b\x00", "naïve".encode(), bytes(range(256))]


def objects(*elements: bytes | str) -> Array:
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def test_bytes_need_not_be_text_and_keep_their_zeros() -> None:
    array = objects(*NOT_UTF8).reshape(2, 3)
    back = decode(encode(array), BYTES, (2, 3))
    assert back.tolist() == array.tolist()


@pytest.mark.parametrize(
    "array",
    [
        objects("a", "ü", ""),
        np.array(["a", "ü", ""]),
        np.array([b"a", "ü".encode(), b""]),
        objects("", "ü", "a")[::-1],
        np.array([["a"], ["ü"], [""]]).T,
    ],
)
def test_text_is_sent_as_utf8(array: Array) -> None:
    assert decode_bytes(encode(array)) == [b"a", "ü".encode(), b""]
    assert from_numpy(array.dtype) == BYTES


def test_a_single_bytes_element_without_dimensions() -> None:
    scalar = np.array(b"x", dtype=object)
    back = decode(encode(scalar), BYTES, ())
    assert back.shape == ()
    assert back.item() == b"x"


@pytest.mark.parametrize("element", [5, 1.5, None, [b"x"]])
def test_other_objects_are_refused_not_guessed(element: object) -> None:
    with pytest.raises(TypeError, match=f"got {type(element).__name__}"):
        encode_bytes([b"fine", element])  # type: ignore[list-item]


@pytest.mark.parametrize("count", [0, 1, 3, 2**40])
def test_another_number_of_elements_is_refused_without_making_room_for_it(count: int) -> None:
    with pytest.raises(InvalidArgument, match=f"expected {count} BYTES elements, got 2"):
        decode(encode_bytes([b"a", b"b"]), BYTES, (count,))


def test_no_product_of_dimensions_wraps_round() -> None:
    with pytest.raises(InvalidArgument, match=f"expected {2**64} BYTES"):
        decode(b"", BYTES, (2**32, 2**32))


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"\x01", "string length indicator: expected 4 bytes, got 1"),
        (b"\x05\x00\x00\x00abc", "string data: expected 5 bytes, got 3"),
        (b"\xff\xff\xff\xff", "string data: expected 4294967295 bytes, got 0"),
        (encode_bytes([b"fine"]) + b"\x00\x00", "string length indicator: expected 4 bytes, got 2"),
    ],
)
def test_a_payload_that_is_cut_short_is_refused(data: bytes, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        decode_bytes(data)


@given(st.lists(st.binary(max_size=50)))
def test_any_bytes_come_back(elements: list[bytes]) -> None:
    payload = encode_bytes(elements)
    assert decode_bytes(payload) == elements
    assert decode_bytes(memoryview(payload)) == elements


@given(st.binary(max_size=200))
def test_random_payloads_are_decoded_or_refused(data: bytes) -> None:
    try:
        elements = decode_bytes(data)
    except InvalidArgument:
        return
    assert encode_bytes(elements) == data


# Any array at all


NUMERIC = (
    arrays.boolean_dtypes()
    | arrays.integer_dtypes(endianness="?")
    | arrays.unsigned_integer_dtypes(endianness="?")
    | arrays.floating_dtypes(sizes=(16, 32, 64), endianness="?")
)


@st.composite
def views(draw: st.DrawFn) -> npt.NDArray[np.generic]:
    """An array of any type and byte order, seen through a random slice and transposition."""
    shape = draw(arrays.array_shapes(min_dims=1, max_dims=4, max_side=5))
    array = draw(arrays.arrays(draw(NUMERIC), shape))
    view = array[draw(arrays.basic_indices(shape, allow_ellipsis=False))]
    return np.asarray(view).transpose(draw(st.permutations(range(np.ndim(view)))))


@given(views())
def test_any_view_of_any_array_comes_back_equal(array: npt.NDArray[np.generic]) -> None:
    assert same(decode(encode(array), from_numpy(array.dtype), array.shape), array)
