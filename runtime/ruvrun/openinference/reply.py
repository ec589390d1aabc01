"""What a call returned, as the body of its answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from ruvrun.errors import InputError, IntegrityError
from ruvrun.openinference.body import SIZE, Call
from ruvrun.openinference.datatypes import DATATYPES, DTYPES, Array

Body = tuple[bytes, int | None]
"""A body, and how many bytes of it are JSON where raw tensors follow (None: all)."""


def write_reply(call: Call, arrays: Mapping[str, Array], *, model: str, version: str) -> Body:
    """The answer to ``call``.

    Args:
        call: what was asked.
        arrays: the graph's outputs by name.
        model: the model's name.
        version: its version.

    Raises:
        InputError: an output holds NaN or infinity, and was not asked for as bytes: JSON has no word for them.
    """
    outputs: list[dict[str, Any]] = []
    raw: list[bytes] = []
    for wanted in call.outputs:
        array = arrays.get(wanted.name)
        if array is None:
            raise IntegrityError("output-missing", f"the pipeline returned no {wanted.name!r}", hint="build again")
        entry, piece = write_tensor(wanted.name, array, binary=wanted.binary)
        outputs.append(entry)
        raw.append(piece)
    body: dict[str, Any] = {"model_name": model, "model_version": version}
    if call.id is not None:
        body["id"] = call.id
    return join({**body, "outputs": outputs}, raw, binary=any(wanted.binary for wanted in call.outputs))


def write_tensor(name: str, array: Array, *, binary: bool) -> tuple[dict[str, Any], bytes]:
    """A tensor's entry, and its bytes behind the JSON where it is ``binary``."""
    datatype = DATATYPES.get(array.dtype.name)
    if datatype is None:
        raise InputError(
            "type-unknown", f"{name!r} is of type {array.dtype}, which does not travel", hint="use numbers"
        )
    entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": list(array.shape)}
    if binary:
        raw = np.ascontiguousarray(array, DTYPES[datatype]).tobytes()
        return {**entry, "parameters": {SIZE: len(raw)}}, raw
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(
            "not-finite",
            f"{name!r} holds NaN or infinity, which JSON does not have",
            hint='ask for it as bytes: "parameters": {"binary_data": true} of the output',
        )
    return {**entry, "data": array.ravel().tolist()}, b""


def join(header: Mapping[str, Any], raw: list[bytes], *, binary: bool) -> Body:
    """JSON, and the raw tensors behind it."""
    text = msgspec.json.encode(header)
    return (b"".join([text, *raw]), len(text)) if binary else (text, None)
