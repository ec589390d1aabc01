"""What a call returned, as the body of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ruvrun.elements import Value
from ruvrun.errors import InputError, IntegrityError
from ruvrun.openinference.body import SIZE, Call
from ruvrun.openinference.datatypes import BF16
from ruvrun.openinference.values import to_bytes

Body = tuple[bytes, int | None]
"""A body, and how many bytes of it are JSON where raw tensors follow (None: all)."""


def write_reply(call: Call, values: Mapping[str, Value], *, model: str, version: str) -> Body:
    """The answer to ``call``; an optional that is absent is left out of it.

    Args:
        call: what was asked.
        values: the graph's outputs by name.
        model: the model's name.
        version: its version.

    Raises:
        InputError: an output has no form in JSON, as NaN and infinity have none, and was not asked for as bytes; or it
            has none in this protocol.
    """
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for wanted in call.outputs:
        if wanted.name not in values:
            raise IntegrityError("output-not-returned", f"the pipeline returned no {wanted.name!r}", hint="build again")
        value = values[wanted.name]
        if value is None:
            continue
        entry, piece = write_tensor(wanted.name, wanted.datatype, value, binary=wanted.binary)
        outputs.append(entry)
        raw.append(piece)
    body: dict[str, Any] = {"model_name": model, "model_version": version}
    if call.id is not None:
        body["id"] = call.id
    return join({**body, "outputs": outputs}, raw, binary=any(wanted.binary for wanted in call.outputs))


def write_tensor(name: str, datatype: str | None, value: Value, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """A tensor's entry, and its bytes behind the JSON where it is ``binary``."""
    if datatype is None or not isinstance(value, np.ndarray):
        raise InputError(
            "type-unknown",
            f"{name!r} is a sequence, or of a type for which this protocol has no form",
            hint="use `ruvrun run --input` on the machine itself, or name the outputs you want",
        )
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(value.shape)}
    if binary:
        raw = to_bytes(datatype, value)
        return {**entry, "parameters": {SIZE: len(raw)}}, raw
    if datatype == BF16 or (value.dtype.kind == "f" and not np.isfinite(value).all()):
        raise InputError(
            "not-finite" if datatype != BF16 else "not-json",
            f"{name!r} {'is BF16' if datatype == BF16 else 'holds NaN or infinity'}, which JSON does not have",
            hint='ask for it as bytes: "parameters": {"binary_data": true} of the output',
        )
    return {**entry, "data": value.ravel().tolist()}, b""


def join(header: Mapping[str, Any], raw: list[bytes], *, binary: bool) -> Body:
    """JSON, and the raw tensors behind it."""
    text = msgspec.json.encode(header)
    return (b"".join([text, *raw]), len(text)) if binary else (text, None)
