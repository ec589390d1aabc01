"""How a value lies in a frame: entries of a header, and the bytes that belong to each.

An entry is (name, code, shape, bytes). A tensor of numbers is one entry whose code is its element type with the byte
order (``<f4``), and its bytes are the array's own, without padding. Element types that numpy lacks are what carries
them (``elements``). The rest is told by three words in the place of the code:

* ``str``  a tensor of texts; the bytes are a msgpack array of them in UTF-8;
* ``seq``  a sequence; the shape is its length, there are no bytes, and the entries of its tensors follow;
* ``none`` an optional that is absent.

Any other code is refused, so nothing a peer writes ever becomes an object. A claim is held against the bytes that are
there and never against hope: an array is a view or it is refused, so that a claim of a petabyte allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from ruvrun.elements import Array, Value
from ruvrun.errors import IntegrityError

Buffer = bytes | bytearray | memoryview

TEXTS, SEQUENCE, ABSENT = "str", "seq", "none"
_MOST_AXES = 16
_TYPES = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8")
_DTYPES = {code: np.dtype(code) for code in _TYPES}
CODES = {dtype: code for code, dtype in _DTYPES.items()}
"""The codes of tensors of numbers, by their types as they travel."""

_NOTHING: Array = np.empty(0, np.uint8)
_to_texts = msgspec.msgpack.Decoder(list[str])
_of_texts = msgspec.msgpack.Encoder()


class FrameError(IntegrityError):
    """What came is not a frame, or what shall go cannot be one."""

    def __init__(self, what: str) -> None:
        super().__init__("frame-wrong", what, hint="all nodes must run the same build and version")

    def __reduce__(self) -> Any:
        return FrameError, (self.message,)


Entry = tuple[str, str, tuple[int, ...], Array]


def describe(name: str, value: Value) -> Iterator[Entry] | tuple[Entry]:
    """The entries of a value; an array's bytes are a view of it where it is contiguous and little-endian.

    Raises:
        FrameError: it is of a type that does not travel.
    """
    if isinstance(value, np.ndarray):
        code = value.dtype.str
        if code in _DTYPES and value.flags.c_contiguous:
            return ((name, code, value.shape, value),)
        return (_plain(name, value),)
    return _no_array(name, value)


def view(name: str, code: str, shape: tuple[int, ...], data: Buffer) -> Value:
    """The value of one entry that is no sequence, as a view of ``data`` where it holds numbers.

    Raises:
        FrameError: the entry is not what ``describe`` makes.
    """
    dtype = _DTYPES.get(code)
    if dtype is None or len(shape) > _MOST_AXES:
        if code == TEXTS and len(shape) <= _MOST_AXES:
            return _texts(name, shape, data)
        if code == ABSENT and not shape and not len(data):
            return None
        raise FrameError(f"tensor {_shown(name)} of type {_shown(code)} with {len(shape)} axes")
    try:
        array: Array = np.ndarray(shape, dtype, data)  # refuses what is too short, and allocates nothing
    except (ValueError, TypeError, OverflowError):
        array = _NOTHING
    there = data.nbytes if isinstance(data, memoryview) else len(data)
    if array.nbytes != there or array is _NOTHING:
        raise FrameError(f"tensor {_shown(name)} is said to be {code} {list(shape)}, but {there} bytes came")
    # Data may begin anywhere in a receive buffer; kernels want an element on a multiple of its size. What was in the
    # header is an object of its own, and begins where any number may.
    return array if isinstance(data, bytes) or array.flags.aligned else array.copy()


def length(name: str, shape: tuple[int, ...], data: Buffer) -> int:
    """How many tensors the sequence of an entry has.

    Raises:
        FrameError: the entry is not what ``describe`` makes.
    """
    if len(shape) != 1 or len(data):
        raise FrameError(f"sequence {_shown(name)} with {len(shape)} axes and {len(data)} bytes")
    return shape[0]


def size(parts: Sequence[Buffer]) -> int:
    """Bytes of all parts."""
    total = 0
    for part in parts:
        total += part.nbytes if isinstance(part, memoryview) else len(part)
    return total


def _texts(name: str, shape: tuple[int, ...], data: Buffer) -> Array:
    try:
        texts = _to_texts.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise FrameError(f"texts {_shown(name)} that cannot be read: {error}") from None
    if len(texts) != math.prod(shape):
        raise FrameError(f"tensor {_shown(name)} is said to be {list(shape)}, but {len(texts)} texts came")
    array: Array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def _no_array(name: str, value: Value) -> Iterator[Entry]:
    if value is None:
        yield name, ABSENT, (), _NOTHING
    elif isinstance(value, list) and all(isinstance(each, np.ndarray) for each in value):
        yield name, SEQUENCE, (len(value),), _NOTHING
        for each in value:
            yield from describe("", each)
    else:
        raise FrameError(f"{name} is a {type(value).__name__}, which does not travel")


def _plain(name: str, array: Array) -> Entry:
    """The same values, contiguous and little-endian; texts as one piece of bytes."""
    if array.dtype == object and all(isinstance(each, str) for each in array.flat):
        data = _of_texts.encode([str(each) for each in array.flat])
        return name, TEXTS, array.shape, np.frombuffer(data, np.uint8)
    plain = np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape)
    if plain.dtype.str not in _DTYPES:
        raise FrameError(f"tensor {name} is of type {array.dtype}, which does not travel")
    return name, plain.dtype.str, array.shape, plain


def _shown(name: str) -> str:
    """What a peer wrote, for a message that ends in a log."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
