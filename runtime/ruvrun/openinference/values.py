"""A tensor's values: a JSON array, flat or nested, or raw bytes, to an array of the shape that was told.

What is told is held against what is there before anything is allocated: a shape of a million times a million is a
sentence, not an attempt. And no value is ever changed to fit. A number with a fraction is no INT64, 300 is no UINT8,
1e300 is no FP32 and ``true`` is no number; each is refused with the name of its input.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from ruvrun.elements import Array
from ruvrun.errors import InputError
from ruvrun.openinference.datatypes import BF16, BYTES, DTYPES
from ruvrun.signature import shorten, show_shape

MOST_VALUES = 2**26
"""Values of one tensor, axes of size 0 not counted: more do not fit a body, whatever their type."""

_KINDS: dict[str, tuple[frozenset[type], str]] = {
    "b": (frozenset([bool]), "true or false"),
    "i": (frozenset([int]), "whole numbers"),
    "u": (frozenset([int]), "whole numbers of 0 and above"),
    "f": (frozenset([int, float]), "numbers"),
    "O": (frozenset([str]), "texts"),
}


def from_json(name: str, datatype: str, shape: Sequence[int], data: Any) -> Array:
    """The array that ``data`` of a request is.

    Args:
        name: of the input, for messages.
        datatype: one of ``DTYPES``.
        shape: sizes, none below 0.
        data: what stands in the JSON.

    Raises:
        InputError: the number of values, their nesting, their kind or their size do not fit.
    """
    if datatype == BF16:
        raise InputError("input-json", f"{name!r} is {BF16}, which JSON cannot hold", hint="send it as binary data")
    dtype = DTYPES[datatype]
    flat = _flatten(name, shape, data)
    allowed, words = _KINDS[dtype.kind]
    if set(map(type, flat)) - allowed:
        wrong = next(value for value in flat if type(value) not in allowed)
        raise _wrong_value(name, f"{_shown(wrong)} among the values of {name!r}; {datatype} takes {words}")
    if datatype == BYTES:
        return _texts(flat, shape)
    try:
        with np.errstate(over="ignore"):
            array = np.array(flat, dtype)
    except OverflowError:
        array = None
    if array is None or (dtype.kind == "f" and not np.isfinite(array).all()):
        raise _wrong_value(name, f"a value of {name!r} is too large for {datatype}: {_shown(_too_large(flat, dtype))}")
    return array.reshape(tuple(shape))


def from_bytes(name: str, datatype: str, shape: Sequence[int], raw: memoryview) -> Array:
    """The array that raw bytes are: little-endian, one after the other, of the last axis first. Of BYTES each text has
    its length before it, in four bytes.

    Raises:
        InputError: more or fewer bytes than the shape takes, a BOOL that is neither 0 nor 1, a text that is not UTF-8.
    """
    if datatype == BYTES:
        return _texts(_split(name, shape, raw), shape)
    dtype = DTYPES[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if len(raw) != wanted:
        raise InputError(
            "input-values",
            f"{name!r} has {len(raw)} bytes, {datatype} of shape {show_shape(shape)} takes {wanted}",
            hint="binary_data_size is the size of the tensor in bytes",
        )
    if dtype.kind == "b" and (np.frombuffer(raw, np.uint8) > 1).any():
        raise _wrong_value(name, f"a byte of {name!r} is neither 0 nor 1; BOOL takes no other")
    array: Array = np.frombuffer(raw, dtype).reshape(tuple(shape))
    return array if array.flags.aligned else array.copy()  # it begins anywhere in the body


def to_bytes(datatype: str, array: Array) -> bytes:
    """What ``from_bytes`` reads."""
    if datatype != BYTES:
        return np.ascontiguousarray(array, DTYPES[datatype]).tobytes()
    texts = [str(text).encode() for text in array.ravel()]
    return b"".join(len(text).to_bytes(4, "little") + text for text in texts)


def require_countable(name: str, shape: Sequence[int]) -> None:
    """Refuse sizes that no body can fill, also beside an axis of size 0: what is computed of them need not be empty."""
    if math.prod(size for size in shape if size) > MOST_VALUES:
        raise InputError(
            "input-too-large",
            f"{name!r} is {show_shape(shape)}, which is more than the {MOST_VALUES} values that one may have",
            hint="send it in pieces, or run the graph with `ruvrun run` on the machine itself",
        )


def _texts(flat: Sequence[str], shape: Sequence[int]) -> Array:
    array: Array = np.empty(len(flat), object)
    array[:] = flat
    return array.reshape(tuple(shape))


def _split(name: str, shape: Sequence[int], raw: memoryview) -> list[str]:
    """The texts in ``raw``, as many as the shape takes."""
    texts: list[str] = []
    begin = 0
    while begin + 4 <= len(raw):
        end = begin + 4 + int.from_bytes(raw[begin : begin + 4], "little")
        if end > len(raw):
            break
        try:
            texts.append(str(raw[begin + 4 : end], "utf-8"))
        except UnicodeDecodeError:
            raise _wrong_value(name, f"text {len(texts)} of {name!r} is not UTF-8") from None
        begin = end
    if begin != len(raw) or len(texts) != math.prod(shape):
        raise _wrong_number(
            name,
            f"the {len(raw)} bytes of {name!r} hold {len(texts)} whole texts, shape {show_shape(shape)} takes "
            f"{math.prod(shape)}",
        )
    return texts


def _flatten(name: str, shape: Sequence[int], data: Any) -> list[Any]:
    """The values in order, once their number, and their nesting where there is one, is that of the shape."""
    if not isinstance(data, list):
        if shape:
            raise _wrong_number(name, f"the data of {name!r} is no array")
        return [data]
    if not data or not isinstance(data[0], list):
        if len(data) != math.prod(shape):
            raise _wrong_number(
                name, f"{name!r} has {len(data)} values, shape {show_shape(shape)} takes {math.prod(shape)}"
            )
        return data
    rows: list[Any] = [data]
    for axis, size in enumerate(shape):
        for row in rows:
            if not isinstance(row, list) or len(row) != size:
                found = f"{len(row)} values" if isinstance(row, list) else _shown(row)
                raise _wrong_number(
                    name, f"{name!r} has {found} where axis {axis} of shape {show_shape(shape)} takes {size}"
                )
        rows = list(chain.from_iterable(rows))
    return rows


def _too_large(flat: Sequence[Any], dtype: np.dtype[Any]) -> Any:
    """The first value that does not fit."""
    if dtype.kind == "f":
        most = float(np.finfo(dtype).max)
        return next((value for value in flat if not -most <= value <= most), None)
    limits = np.iinfo(dtype)
    return next(value for value in flat if not limits.min <= value <= limits.max)


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return "an array" if isinstance(value, list) else "an object"
    if isinstance(value, int) and abs(value) >= 10**40:
        return "a number of more than forty digits"  # Python refuses to print very long ones
    return "null" if value is None else shorten(repr(value))


def _wrong_value(name: str, message: str) -> InputError:
    return InputError("input-value", message, hint=f"give {shorten(name)!r} values of its datatype")


def _wrong_number(name: str, message: str) -> InputError:
    return InputError(
        "input-values",
        message,
        hint=f"give as many values as the shape of {shorten(name)!r} says, flat or nested as it",
    )
