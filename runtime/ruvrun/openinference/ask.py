"""The client's end: arrays to the body of a call, and the body of an answer to arrays. All tensors go as bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ruvrun.errors import InputError
from ruvrun.openinference.body import ALL_BINARY, LARGEST_BODY, SIZE
from ruvrun.openinference.datatypes import DTYPES, Array
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


def write_call(arrays: Mapping[str, Array]) -> Body:
    """A call with these inputs, that asks for all outputs.

    Raises:
        InputError: an array of a type that does not travel, or more than a head takes.
    """
    inputs, raw = [], []
    for name, array in arrays.items():
        entry, piece = write_tensor(name, array, binary=True)
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
