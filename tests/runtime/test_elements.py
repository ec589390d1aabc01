"""What stands for element types that numpy lacks: onnx's own helpers and the ml_dtypes package are the judges."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.elements import (
    ELEMENTS,
    bits_of,
    carrier,
    copied,
    element_of,
    is_float,
    largest_difference,
    packed,
    unpacked,
    values_of,
)

NAMES = sorted(ELEMENTS)


def real(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name))


def every(name: str) -> np.ndarray:
    """All values of a type there are, as what stands for them."""
    element = ELEMENTS[name]
    bits = np.arange(2**element.bits, dtype=np.uint32)
    if element.carrier.kind == "i":
        bits = bits.astype(np.int64) - 2 ** (element.bits - 1)
    return bits.astype(element.carrier)


def natural(array: np.ndarray, name: str) -> np.ndarray:
    return array.view(real(name)) if ELEMENTS[name].exponent else array.astype(real(name))


@pytest.mark.parametrize("name", NAMES)
def test_onnx_packs_them_the_same_way(name) -> None:
    array = every(name)[:-1]
    proto = onnx.numpy_helper.from_array(natural(array, name))
    assert proto.data_type == ELEMENTS[name].number
    assert packed(array, ELEMENTS[name]) == proto.raw_data


@pytest.mark.parametrize("name", NAMES)
@given(shape=st.lists(st.integers(0, 5), max_size=3).map(tuple))
def test_unpacking_is_the_way_back(name, shape) -> None:
    array = np.resize(every(name), shape)
    there = unpacked(packed(array, ELEMENTS[name]), shape, ELEMENTS[name])
    assert there.dtype == array.dtype == carrier(name)
    np.testing.assert_array_equal(there, array)


@pytest.mark.parametrize("name", NAMES)
def test_they_mean_what_ml_dtypes_says(name) -> None:
    array = every(name)
    with np.errstate(invalid="ignore"):
        wanted = natural(array, name).astype(np.float64)
    known = np.isfinite(wanted)
    assert known.any()
    np.testing.assert_array_equal(values_of(array, name)[known], wanted[known])
    assert is_float(name) is bool(ELEMENTS[name].exponent)


@pytest.mark.parametrize("name", NAMES)
def test_arrays_of_ml_dtypes_are_taken_for_what_stands_for_them(name) -> None:
    array = every(name).reshape(2, -1)
    given = natural(array, name)
    np.testing.assert_array_equal(bits_of(given, name), array)
    if given.dtype.str[1] == "V":  # what a file keeps of it
        np.testing.assert_array_equal(bits_of(given.view(f"V{given.dtype.itemsize}"), name), array)
    plain = np.zeros(3, np.float32)
    assert bits_of(plain, name) is plain


def test_names_of_types() -> None:
    assert carrier("float32") == np.float32
    assert carrier("string").kind == "O"
    assert element_of("optional(seq(int64))") == "int64"
    assert element_of("bfloat16") == "bfloat16"
    with pytest.raises(TypeError):
        carrier("float7")


@pytest.mark.parametrize(
    ("one", "other", "dtype", "apart"),
    [
        ([1.0, np.nan, np.inf], [1.5, np.nan, np.inf], "float32", 0.5),
        ([np.inf], [-np.inf], "float32", np.inf),
        ([], [], "float32", 0.0),
        (2**60, 2**60 + 1, "int64", 1.0),
        (True, False, "bool", 1.0),
        (0x3F80, 0x3F81, "bfloat16", 2.0**-7),
    ],
)
def test_how_far_apart(one, other, dtype, apart) -> None:
    arrays = np.array(one, carrier(dtype)), np.array(other, carrier(dtype))
    assert largest_difference(*arrays, dtype) == apart
    assert largest_difference(arrays[0], arrays[0], dtype) == 0.0


def test_one_not_a_number_is_no_agreement() -> None:
    assert not largest_difference(np.float32([np.nan]), np.float32([1]), "float32") <= 1e9


def test_copies_are_of_their_own() -> None:
    value = [np.zeros(2), np.zeros(1)]
    again = copied(value)
    again[0][0] = 1
    assert value[0][0] == 0
    assert copied(None) is None
