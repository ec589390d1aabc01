"""The client's end: arrays to the body of a call, and the body of an answer to arrays. All tensors go as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ruvrun.elements import STRING, Array, Value, bits_of
from ruvrun.errors import InputError
from ruvrun.openinference.body import ALL_BINARY, LARGEST_BODY, SIZE
from ruvrun.openinference.datatypes import BF16, DATATYPES, DTYPES
from ruvrun.openinference.reply import Body, join, write_tensor
from ruvrun.openinference.values import from_bytes, from_json


class _Output(msgspec.Struct):
    name: str
    datatype: str
    shape: list[int]
    data: Any = None
    parameters: dict[str, Any] = {}


class _Answer(msgspec.Struct):
    outputs: list[_Output]


def write_call(values: Mapping[str, Value], datatypes: Mapping[str, str] = {}) -> Body:
    """A call with these inputs, that asks for all outputs.

    Args:
        values: inputs by name; None is left out.
        datatypes: the protocol's names for their types, where an array does not tell (BF16).

    Raises:
        InputError: a value of a type that the protocol does not have, or more than a head takes.
    """
    inputs, raw = [], []
    for name, value in values.items():
        if value is None:
            continue
        typed, datatype = _typed(value, datatypes.get(name))
        entry, piece = write_tensor(name, datatype, typed, binary=True)
        inputs.append(entry)
        raw.append(piece)
    body, header = join({"inputs": inputs, "parameters": {ALL_BINARY: True}}, raw, binary=True)
    if len(body) > LARGEST_BODY:
        raise InputError(
            "call-too-large",
            f"the inputs are {len(body)} bytes, a head takes {LARGEST_BODY} at a time",
            hint="send them in pieces, or run the graph on the machine itself",
        )
    return body, header


def read_reply(body: bytes, header: int | None) -> dict[str, Array]:
    """The outputs of an answer.

    Raises:
        ValueError: it is none (msgspec's errors and ours are among them).
    """
    view = memoryview(body)
    answer = msgspec.json.decode(view[:header], type=_Answer)
    rest = view[header:] if header is not None else view[:0]
    arrays: dict[str, Array] = {}
    for one in answer.outputs:
        if one.datatype not in DTYPES:
            raise ValueError(f"output {one.name} is {one.datatype}")
        size = one.parameters.get(SIZE)
        if size is None:
            arrays[one.name] = from_json(one.name, one.datatype, one.shape, one.data)
        else:
            arrays[one.name] = from_bytes(one.name, one.datatype, one.shape, rest[:size])
            rest = rest[size:]
    return arrays


def _typed(value: Value, wanted: str | None) -> tuple[Value, str | None]:
    """The value as it travels, and the protocol's name for its type; None where it has none."""
    if not isinstance(value, np.ndarray):
        return value, None
    bits = bits_of(value, "bfloat16") if wanted == BF16 else value
    if wanted == BF16 and bits.dtype == DTYPES[BF16]:
        return bits, BF16
    return value, DATATYPES.get(STRING if value.dtype == object else value.dtype.name)
