"""What the Open Inference Protocol writes: answers that are read back bit by bit, and what a model is described as."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.errors import InputError
from ruvrun.manifest import Manifest, Tensor
from ruvrun.openinference import describe_model, read_call, read_reply, write_call, write_reply
from ruvrun.openinference.datatypes import DTYPES
from tests.runtime.fake_ring import fake_manifest
from tests.runtime.infers import GOOD, M, X, Y, Z, answer, call_of, with_
from tests.strategies import tensors


def test_an_answer() -> None:
    outputs = {"y": np.array([[0.1, 2]], np.float32), "best": np.array([1])}
    assert answer(call_of(GOOD, id="a"), **outputs) == {
        "model_name": "det",
        "model_version": "1",
        "id": "a",
        "outputs": [
            {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [float(np.float32(0.1)), 2.0]},
            {"name": "best", "datatype": "INT64", "shape": [1], "data": [1]},
        ],
    }
    assert "id" not in answer(call_of(GOOD, outputs=[{"name": "best"}]), **outputs)


def test_nan_is_refused_as_json_and_sent_as_bytes() -> None:
    outputs = {"y": np.array([[np.nan, np.inf]], np.float32), "best": np.array([1])}
    with pytest.raises(InputError, match="'y' holds NaN"):
        answer(call_of(GOOD), **outputs)
    assert answer(call_of(GOOD, outputs=[{"name": "best"}]), **outputs)["outputs"][0]["data"] == [1]
    call = call_of(GOOD, outputs=[{"name": "best"}, {"name": "y", "parameters": {"binary_data": True}}])
    text, header = write_reply(call, outputs, model="det", version="1")
    assert header is not None
    assert text[header:] == outputs["y"].tobytes()
    assert read_reply(text, header)["best"].tolist() == [1]


@given(tensors(), st.booleans())
def test_what_is_written_is_read_back_bit_by_bit(arrays: dict[str, Any], binary: bool) -> None:
    flags = {name: np.asarray(one.view(np.uint8) & 1).view(bool) for name, one in arrays.items() if one.dtype == bool}
    arrays = {**arrays, **flags}
    told = [Tensor(name=name, dtype=array.dtype.name, shape=list(array.shape)) for name, array in arrays.items()]
    text, header = write_call(arrays)
    call = read_call(text, header, told, told)
    _assert_same(call.tensors, arrays)
    if not binary:
        arrays = {name: np.asarray(np.nan_to_num(array, posinf=0, neginf=0)) for name, array in arrays.items()}
        plain = [
            {"name": one.name, "datatype": entry["datatype"], "shape": one.shape, "data": arrays[one.name].tolist()}
            for one, entry in zip(told, json.loads(text[:header])["inputs"], strict=True)
        ]
        call = read_call(msgspec.json.encode({"inputs": plain}), None, told, told)
        _assert_same(call.tensors, arrays)
    _assert_same(read_reply(*write_reply(call, arrays, model="m", version="1")), arrays)


def _assert_same(found: Any, wanted: Any) -> None:
    assert list(found) == list(wanted)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        assert found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda x: st.lists(x, max_size=3)))
def test_whatever_the_data_is_it_is_read_or_refused(data: Any) -> None:
    try:
        array = read_call(msgspec.json.encode({"inputs": [with_(data=data)]}), None, (X,), (Y,)).tensors["x"]
    except InputError:
        return
    assert array.ravel().tolist() == np.array(data, np.float32).ravel().tolist()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["name", "shape", "datatype", "data", "parameters"]), ANYTHING),
    st.dictionaries(st.sampled_from(["id", "inputs", "outputs", "parameters", "other"]), ANYTHING),
    st.none() | st.integers(0, 200),
    st.binary(max_size=20),
)
def test_whatever_a_body_holds_it_is_a_call_or_one_error(
    fields: dict[str, Any], body: dict[str, Any], header: int | None, rest: bytes
) -> None:
    text = msgspec.json.encode({"inputs": [{**GOOD, **fields}], **body})
    said = []
    for whole, told in ((text, None), (text + rest, len(text)), (text + rest, header), (rest, None)):
        try:
            read_call(whole, told, (X,), (Y, Z))
        except InputError as error:
            said.append(error.message)
    assert all(0 < len(message) < 500 for message in said)


# What is described


def test_a_model_is_described() -> None:
    manifest: Manifest = fake_manifest(["a"], "graph")
    text = Tensor(name="text", dtype="string", shape=["b", 1])
    program = msgspec.structs.replace(manifest.program, name="det", inputs=[X, text], outputs=[M])
    found = describe_model(msgspec.structs.replace(manifest, program=program))
    assert found == {
        "name": "det",
        "versions": ["a" * 12],
        "platform": "onnx_onnxv1",
        "inputs": [
            {"name": "x", "datatype": "FP32", "shape": [-1, 2]},
            {"name": "text", "datatype": "BYTES", "shape": [-1, 1]},
        ],
        "outputs": [{"name": "mask", "datatype": "BOOL", "shape": [2]}],
    }


def test_all_datatypes_are_little_endian() -> None:
    assert all(dtype.str[0] in "<|" for dtype in DTYPES.values())
