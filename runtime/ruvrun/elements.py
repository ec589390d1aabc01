"""Element types for which numpy has no name, and the arrays that stand for them everywhere in the runtime.

========================  ==============================================================
bfloat16, float8_*        the bits of each element, in ``uint16`` and ``uint8``
uint4, uint2, float4_*    one element per ``uint8`` (of float4 its four bits)
int4, int2                one element per ``int8``
string                    an array of ``object``, each a ``str``
========================  ==============================================================

All of these but strings are plain integers to a link, a file and everyone who only hands them on. Who computes with
them (an executor) or compares them (a golden check) knows the real type by its name in the manifest, which is the
one that the ml_dtypes package uses, so that ``array.view(ml_dtypes.bfloat16)`` gives a user what he wants.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Value = Any
"""What enters or leaves a graph: an array, a list of values (a sequence), or None (an optional that is not there)."""

Arrays = Mapping[str, Array]
"""What a link carries, by name."""

Tensors = Mapping[str, Value]
"""What enters or leaves any stage, by name."""


class Element(NamedTuple):
    """An element type: its number in ONNX, what carries it, and its bits in memory.

    A float has ``exponent`` and ``mantissa`` bits, a ``bias``, and maybe a ``sign``; the others have none of these.
    """

    number: int
    carrier: np.dtype[Any]
    bits: int
    exponent: int = 0
    mantissa: int = 0
    bias: int = 0


_U8, _I8, _U16 = np.dtype(np.uint8), np.dtype(np.int8), np.dtype(np.uint16)

ELEMENTS = {
    "bfloat16": Element(16, _U16, 16, 8, 7, 127),
    "float8_e4m3fn": Element(17, _U8, 8, 4, 3, 7),
    "float8_e4m3fnuz": Element(18, _U8, 8, 4, 3, 8),
    "float8_e5m2": Element(19, _U8, 8, 5, 2, 15),
    "float8_e5m2fnuz": Element(20, _U8, 8, 5, 2, 16),
    "float8_e8m0fnu": Element(24, _U8, 8, 8, 0, 127),
    "float4_e2m1fn": Element(23, _U8, 4, 2, 1, 1),
    "uint4": Element(21, _U8, 4),
    "int4": Element(22, _I8, 4),
    "uint2": Element(25, _U8, 2),
    "int2": Element(26, _I8, 2),
}
"""The types that numpy lacks, by name."""

STRING = "string"


def carrier(dtype: str) -> np.dtype[Any]:
    """The numpy type of the arrays that stand for elements of type ``dtype``, as a manifest names it.

    Raises:
        TypeError: no such type.
    """
    if dtype == STRING:
        return np.dtype(object)
    element = ELEMENTS.get(dtype)
    return element.carrier if element is not None else np.dtype(dtype)


def packed(array: Array, element: Element) -> bytes:
    """The bytes of ``array`` as a back end holds them: elements of less than a byte share one, the first lowest."""
    if element.bits >= 8:
        return np.ascontiguousarray(array, element.carrier).tobytes()
    each = 8 // element.bits
    flat = array.reshape(-1).astype(np.uint8) & (2**element.bits - 1)
    rows = np.pad(flat, (0, -len(flat) % each)).reshape(-1, each)
    shifts = np.arange(each, dtype=np.uint8) * element.bits
    joined: Array = np.bitwise_or.reduce(rows << shifts, axis=1)
    return joined.astype(np.uint8).tobytes()


def unpacked(data: bytes, shape: tuple[int, ...], element: Element) -> Array:
    """The array of ``shape`` that ``packed`` made ``data`` of."""
    if element.bits >= 8:
        return np.frombuffer(data, element.carrier).reshape(shape)
    each = 8 // element.bits
    shifts = np.arange(each, dtype=np.uint8) * element.bits
    bits: Array = (np.frombuffer(data, np.uint8)[:, None] >> shifts) & (2**element.bits - 1)
    flat = bits.reshape(-1)[: int(np.prod(shape, dtype=np.int64))].astype(element.carrier)
    if element.carrier.kind == "i":
        flat[flat >= 2 ** (element.bits - 1)] -= 2**element.bits
    return flat.reshape(shape)


def values_of(array: Array, dtype: str) -> Array:
    """The numbers that ``array`` of type ``dtype`` stands for, as float64; not for strings.

    The few special bit patterns of the small floats (infinities, not-a-numbers) are read as if they were numbers.
    """
    element = ELEMENTS.get(dtype)
    if element is None or not element.exponent:
        return array.astype(np.float64)
    if element.bits == 16:
        with np.errstate(invalid="ignore"):
            return (array.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    bits = array.astype(np.int64)
    if not element.mantissa:
        return np.asarray(2.0 ** (bits - element.bias))
    mantissa = bits & (2**element.mantissa - 1)
    exponent = (bits >> element.mantissa) & (2**element.exponent - 1)
    sign = 1 - 2 * ((bits >> (element.mantissa + element.exponent)) & 1)
    ones = mantissa / 2**element.mantissa + (exponent > 0)
    return np.asarray(sign * ones * 2.0 ** (np.maximum(exponent, 1) - element.bias))


def is_float(dtype: str) -> bool:
    """Whether elements of type ``dtype`` are floats, which may differ in the last digits from machine to machine."""
    element = ELEMENTS.get(dtype)
    return element.exponent > 0 if element is not None else carrier(dtype).kind in "fc"


def bits_of(array: Array, dtype: str) -> Array:
    """``array`` as what stands for elements of type ``dtype``, where it holds those of the ml_dtypes package.

    A file that ``numpy.savez`` wrote keeps of such a type only its width (``V2``). Any other array stays as it is.
    """
    element = ELEMENTS.get(dtype)
    known = array.dtype.kind == "V" or array.dtype.name == dtype
    if element is None or not known or array.dtype.itemsize != element.carrier.itemsize:
        return array
    bits = np.ascontiguousarray(array).view(element.carrier).reshape(array.shape)
    return bits if element.bits >= 8 else unpacked(packed(bits, element), bits.shape, element)


def distances(one: Array, other: Array) -> Array:
    """The absolute differences of two arrays of numbers; 0 where both are NaN or one infinity, NaN where one is NaN."""
    with np.errstate(invalid="ignore"):
        apart = np.where(one == other, 0.0, np.abs(one - other))
    return np.where(np.isnan(one) & np.isnan(other), 0.0, apart)


def largest_difference(one: Array, other: Array, dtype: str) -> float:
    """The largest absolute difference of two arrays of one shape; where both are NaN or one infinity there is none.

    NaN where one of them is NaN alone.
    """
    if not is_float(dtype) and not (one != other).any():
        return 0.0
    largest = float(distances(values_of(one, dtype), values_of(other, dtype)).max(initial=0.0))
    return largest if is_float(dtype) else max(largest, 1.0)  # large integers may differ by less than a float64 tells


def element_of(dtype: str) -> str:
    """The element type of ``dtype``, which may be of sequences or optionals: ``int64`` of ``optional(seq(int64))``."""
    return dtype.rpartition("(")[2].rstrip(")")


def copied(value: Value) -> Value:
    """``value`` with arrays of its own."""
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value.copy() if isinstance(value, np.ndarray | dict) else value
