"""The body of a call, read strictly: JSON, and perhaps bytes behind it, to tensors the graph takes, or one sentence.

Order matters to whoever has to find his mistake: first the form of the whole, then names, then for each input its
datatype, its shape and only then its values. Parameters that we do not have are refused by name, since one that is
silently dropped may be a wrong answer; those in ``IGNORED`` cannot change which answer is right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

import msgspec

from ruvrun.elements import Array, Value
from ruvrun.errors import InputError, did_you_mean
from ruvrun.manifest import Tensor
from ruvrun.openinference.datatypes import DTYPES, datatype_of
from ruvrun.openinference.values import from_bytes, from_json, require_countable
from ruvrun.signature import require_names, require_shape, shorten

IGNORED = frozenset(["content_type", "headers", "priority", "timeout"])
LARGEST_BODY = 64 * 2**20
"""Bytes of a call, at most."""
JSON_BYTES = "Inference-Header-Content-Length"
"""The HTTP header that says how many bytes of a body are JSON, where raw tensors follow."""
SIZE, BINARY, ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
_SEARCHED = 2**20


@dataclass(frozen=True)
class Wanted:
    """An output that shall be in the answer; ``binary``: as bytes behind the JSON.

    ``datatype`` is None where the protocol has no form for it; that is told once it is there.
    """

    name: str
    datatype: str | None
    binary: bool


@dataclass(frozen=True)
class Call:
    """One call: its inputs by name (None: left out), and which outputs to answer with; ``id`` is the client's own."""

    id: str | None
    tensors: Mapping[str, Value]
    outputs: Sequence[Wanted]


class _Strict(msgspec.Struct, forbid_unknown_fields=True):
    """A table of the body; null means: not given."""


class _Body(_Strict):
    inputs: list[Any]
    id: str | None = None
    outputs: list[Any] | None = None
    parameters: dict[str, Any] | None = None


class _Input(_Strict):
    name: str
    shape: list[Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]]
    datatype: str
    data: Any = None
    parameters: dict[str, Any] | None = None


class _Output(_Strict):
    name: str
    parameters: dict[str, Any] | None = None


_T = TypeVar("_T", bound=_Strict)


def read_call(body: bytes, header: int | None, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> Call:
    """Read a call.

    Args:
        body: the whole body.
        header: bytes of it that are JSON, where raw tensors follow; None: all.
        inputs: what the graph takes.
        outputs: what it gives.

    Raises:
        InputError: the body is not a call of this graph, naming the input where it is one.
    """
    view = memoryview(body)
    if header is not None and header > len(view):
        raise _wrong(f"the JSON is said to be {header} bytes of a body of {len(view)}")
    text, rest = (view, view[:0]) if header is None else (view[:header], view[header:])
    found = _convert(_json(text), _Body, "the body")
    all_binary = _flag(_parameters(found.parameters, {ALL_BINARY}, "the request"), ALL_BINARY, "the request")
    wanted = _outputs(found.outputs, outputs, all_binary)
    told = [_convert(one, _Input, _place(one, at)) for at, one in enumerate(found.inputs)]
    seen: set[str] = set()
    for one in told:
        if one.name in seen:
            raise _wrong(f"input {shorten(one.name)!r} is given twice")
        seen.add(one.name)
    require_names([one.name for one in told], inputs, where="names are those of the ONNX file")
    known = {tensor.name: tensor for tensor in inputs}
    sizes: dict[str, int] = {}
    for one in told:
        _require_type(known[one.name], one)
        require_shape(known[one.name], one.shape, sizes)
        require_countable(one.name, one.shape)
    left_out = dict.fromkeys(tensor.name for tensor in inputs if tensor.name not in seen)
    return Call(found.id, {**_values(told, rest), **left_out}, wanted)


def _values(told: Sequence[_Input], rest: memoryview) -> dict[str, Array]:
    """Every input's array; the raw ones follow one another behind the JSON, in the order of the inputs."""
    tensors: dict[str, Array] = {}
    begin = 0
    for one in told:
        parameters = _parameters(one.parameters, {SIZE}, f"input {one.name!r}")
        if SIZE not in parameters:
            if one.data is None:
                raise InputError("input-values", f"input {one.name!r} has no data", hint="give it as an array")
            tensors[one.name] = from_json(one.name, one.datatype, one.shape, one.data)
            continue
        size = parameters[SIZE]
        if type(size) is not int or size < 0 or one.data is not None:
            raise _wrong(f"input {one.name!r} needs a {SIZE} of 0 or more, and no data beside it")
        if begin + size > len(rest):
            raise InputError(
                "call-wrong",
                f"{len(rest)} bytes follow the JSON, and input {one.name!r} is said to end at {begin + size}",
                hint=f"the header {JSON_BYTES} says how many bytes are JSON",
            )
        tensors[one.name] = from_bytes(one.name, one.datatype, one.shape, rest[begin : begin + size])
        begin += size
    if begin != len(rest):
        raise _wrong(f"{len(rest)} bytes follow the JSON, and the inputs tell of {begin}")
    return tensors


def _require_type(tensor: Tensor, one: _Input) -> None:
    wanted = datatype_of(tensor)
    if wanted is None:
        raise InputError(
            "input-type-wrong",
            f"the model's input {one.name!r} is {tensor.dtype}, for which this protocol has no form",
            hint="use `ruvrun run --input` on the machine itself",
        )
    if one.datatype not in DTYPES:
        given = shorten(one.datatype)
        raise InputError(
            "input-type-wrong", f"input {one.name!r} has the datatype {given!r}", hint=did_you_mean(given, DTYPES)
        )
    if one.datatype != wanted:
        raise InputError(
            "input-type-wrong", f"{one.name!r} is {one.datatype}, the model takes {wanted}", hint=f"send it as {wanted}"
        )


def _outputs(asked: Sequence[Any] | None, outputs: Sequence[Tensor], all_binary: bool) -> list[Wanted]:
    """What to answer with: what was asked for, in that order, or else everything."""
    types = {tensor.name: datatype_of(tensor) for tensor in outputs}
    if not asked:
        return [Wanted(name, datatype, all_binary) for name, datatype in types.items()]
    wanted: dict[str, Wanted] = {}
    for at, one in enumerate(asked):
        found = _convert(one, _Output, f"outputs[{at}]")
        name = shorten(found.name)
        if found.name not in types:
            raise InputError("output-unknown", f"the model has no output {name!r}", hint=did_you_mean(name, types))
        if name in wanted:
            raise _wrong(f"output {name!r} is asked for twice")
        parameters = _parameters(found.parameters, {BINARY}, f"output {name!r}")
        wanted[name] = Wanted(found.name, types[found.name], _flag(parameters, BINARY, f"output {name!r}", all_binary))
    return list(wanted.values())


def _json(text: memoryview) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if len(text) <= _SEARCHED and (name := _not_finite(bytes(text))) is not None:
            raise InputError(
                "input-value",
                f"a value of input {shorten(name)!r} is NaN or infinite, which JSON does not have",
                hint="send the tensor as binary data",
            ) from None
        raise InputError("json-wrong", f"the body is not valid JSON: {error}", hint=_not_json(bytes(text))) from None


def _not_json(text: bytes) -> str | None:
    return "JSON has no NaN and no infinity" if b"NaN" in text or b"Infinity" in text else None


def _not_finite(text: bytes) -> str | None:
    """The input that holds what some encoders write and JSON has not, in a body that could not be read."""
    try:
        inputs = json.loads(text)["inputs"]
        for one in inputs:
            rows = [one["data"]]
            while rows:
                row = rows.pop()
                if isinstance(row, list):
                    rows += row
                elif isinstance(row, float) and not math.isfinite(row):
                    return str(one["name"])
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    return None


def _convert(fields: Any, kind: type[_T], where: str) -> _T:
    if not isinstance(fields, dict):
        raise _wrong(f"{where} must be a JSON object")
    known = kind.__struct_fields__
    for name in fields.keys() - set(known):
        raise _wrong(f"{where} has an unknown field {shorten(name)!r}; {did_you_mean(shorten(name), known)}")
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        sentence, _, place = str(error).partition(" - at `$")
        inside = place.rstrip("`").lstrip(".")
        raise _wrong(f"{where}{f', {inside}' if inside else ''}: {sentence}") from None


def _place(one: Any, at: int) -> str:
    """What to call an input in messages: by its name, if it has one."""
    name = one.get("name") if isinstance(one, dict) else None
    return f"input {shorten(name)!r}" if isinstance(name, str) else f"inputs[{at}]"


def _parameters(given: Mapping[str, Any] | None, known: set[str], where: str) -> Mapping[str, Any]:
    found = given or {}
    for name in found.keys() - known - IGNORED:
        raise _wrong(f"{where} has a parameter {shorten(name)!r}, which is not supported here")
    return found


def _flag(parameters: Mapping[str, Any], name: str, where: str, otherwise: bool = False) -> bool:
    value = parameters.get(name, otherwise)
    if not isinstance(value, bool):
        raise _wrong(f"{name} of {where} must be true or false")
    return value


def _wrong(message: str) -> InputError:
    return InputError("call-wrong", message, hint=None)
