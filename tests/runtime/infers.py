"""Calls of a graph in the Open Inference Protocol as a test writes them, and the graph that they are for."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ruvrun.errors import InputError
from ruvrun.manifest import Tensor
from ruvrun.openinference import Call, read_call, write_reply

X = Tensor(name="x", dtype="float32", shape=["n", 2])
K = Tensor(name="k", dtype="int64", shape=["n"])
M = Tensor(name="mask", dtype="bool", shape=[2])
Y = Tensor(name="y", dtype="float32", shape=["n", 2])
Z = Tensor(name="best", dtype="int64", shape=["n"])
GOOD = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1, 2.5, -3, 4]}


def call_of(*inputs: dict[str, Any], signature: tuple[Tensor, ...] = (X,), **more: Any) -> Call:
    return read_call(json.dumps({"inputs": list(inputs), **more}).encode(), None, signature, (Y, Z))


def refusal(*inputs: Any, signature: tuple[Tensor, ...] = (X,), **more: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        call_of(*inputs, signature=signature, **more)
    return caught.value


def with_(**fields: Any) -> dict[str, Any]:
    return {**GOOD, **fields}


def answer(call: Call, **arrays: Any) -> dict[str, Any]:
    text, header = write_reply(call, arrays, model="det", version="1")
    assert header is None
    found: dict[str, Any] = json.loads(text)
    return found
