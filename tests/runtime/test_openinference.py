"""The Open Inference Protocol as text: what is read, and what is refused in which words."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import numpy as np
import pytest

from ruvrun.errors import InputError
from ruvrun.manifest import Tensor
from ruvrun.openinference import Call, Wanted, read_call, read_reply, write_call, write_reply
from tests.runtime.infers import GOOD, K, M, X, Y, Z, answer, call_of, refusal, with_

# What is read


@pytest.mark.parametrize("data", [[1, 2.5, -3, 4], [[1, 2.5], [-3, 4]]])
def test_flat_and_nested_are_the_same(data: Any) -> None:
    array = call_of(with_(data=data)).tensors["x"]
    assert array.dtype == np.float32
    assert array.tolist() == [[1, 2.5], [-3, 4]]


def test_every_output_is_wanted_unless_some_are_named() -> None:
    assert [one.name for one in call_of(GOOD).outputs] == ["y", "best"]
    assert [one.name for one in call_of(GOOD, outputs=[{"name": "best"}]).outputs] == ["best"]
    assert [one.name for one in call_of(GOOD, outputs=[]).outputs] == ["y", "best"]
    assert call_of(GOOD, id="seven").id == "seven"


def test_what_cannot_change_the_answer_is_ignored() -> None:
    call = call_of(with_(parameters={"content_type": "np", "headers": {}}), parameters={"priority": 1})
    plain = call_of(GOOD)
    assert (call.id, call.outputs) == (plain.id, plain.outputs)
    np.testing.assert_array_equal(call.tensors["x"], plain.tensors["x"])


def test_a_single_value_and_an_empty_axis() -> None:
    scalar = Tensor(name="x", dtype="float64", shape=[])
    for data in (3, [3]):
        one = call_of({"name": "x", "shape": [], "datatype": "FP64", "data": data}, signature=(scalar,))
        assert one.tensors["x"].shape == ()
    assert call_of(with_(shape=[0, 2], data=[])).tensors["x"].shape == (0, 2)


def test_an_open_size_is_the_same_everywhere() -> None:
    inputs = (GOOD, {"name": "k", "shape": [2], "datatype": "INT64", "data": [5, 6]})
    assert set(call_of(*inputs, signature=(X, K)).tensors) == {"x", "k"}
    error = refusal(GOOD, {"name": "k", "shape": [3], "datatype": "INT64", "data": [5, 6, 7]}, signature=(X, K))
    assert (error.ref, error.context) == ("input-shape-wrong", ("n is 2",))


# What is refused


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ([], "no array for the model's input 'x'"),
        ([GOOD, GOOD], "'x' is given twice"),
        ([with_(datatype="FP64")], "'x' is FP64, the model takes FP32"),
        ([with_(datatype="BYTES", data=["a"])], "'x' is BYTES, the model takes FP32"),
        ([with_(shape=[2, 3])], r"'x' is \[2, 3\], the model takes x float32\[n, 2\]"),
        ([with_(shape=[4])], r"'x' is \[4\]"),
        ([with_(shape=[1] * 1000)], "'x' is of 1000 axes"),
        ([with_(data=[1, 2, 3])], r"'x' has 3 values, shape \[2, 2\] takes 4"),
        ([with_(data=[[1, 2], [3]])], "'x' has 1 values where axis 1"),
        ([with_(data=[[1, 2], 3])], "'x' has 3 where axis 1"),
        ([with_(data=[[1, 2]])], "'x' has 1 values where axis 0"),
        ([with_(data=[[[1], [2]], [[3], [4]]])], "an array among the values of 'x'"),
        ([with_(data=[1, 2, 3, None])], "null among the values of 'x'"),
        ([with_(data=[1, 2, 3, True])], "true among the values of 'x'; FP32 takes numbers"),
        ([with_(data=[1, 2, 3, "4"])], "'4' among the values of 'x'"),
        ([with_(data=[1, 2, 3, 1e39])], "'x' is too large for FP32: 1e[+]39"),
        ([with_(data=[1, 2, 3, 10**400])], "'x' is too large for FP32: a number of more than forty digits"),
        ([with_(data=None)], "'x' has no data"),
        ([with_(data={})], "the data of 'x' is no array"),
        ([with_(shape=[2**63, 2])], "input 'x', shape"),
        ([with_(shape=[-1, 2])], "input 'x', shape"),
        ([with_(shape="2,2")], "input 'x', shape"),
        ([{"name": "x", "shape": [2, 2], "data": [1, 2, 3, 4]}], "input 'x': .*datatype"),
        ([{"shape": [2, 2]}], r"inputs\[0\]"),
        ([3], r"inputs\[0\] must be a JSON object"),
        ([with_(date=[1])], "unknown field 'date'; did you mean 'data'"),
        ([with_(parameters={"sequence_id": 3})], "'x' has a parameter 'sequence_id'"),
        ([with_(parameters={"binary_data_size": 16})], "'x' needs a binary_data_size .* no data beside it"),
    ],
)
def test_a_wrong_input_is_named(inputs: list[Any], words: str) -> None:
    assert refusal(*inputs).args[0]
    with pytest.raises(InputError, match=words):
        call_of(*inputs)


def test_unknown_names_come_with_the_nearest() -> None:
    long = Tensor(name="pixels", dtype="float32", shape=[1])
    assert refusal({**GOOD, "name": "pixel"}, signature=(long,)).hint == "did you mean 'pixels'?"
    assert refusal(with_(datatype="FP23")).hint == "did you mean 'FP32'?"
    assert refusal(GOOD, outputs=[{"name": "bets"}]).hint == "did you mean 'best'?"
    assert len(refusal({**GOOD, "name": "p" * 10**6}).message) < 200


@pytest.mark.parametrize(
    ("datatype", "dtype", "value"),
    [
        ("UINT8", "uint8", 256),
        ("UINT8", "uint8", -1),
        ("INT8", "int8", 128),
        ("INT64", "int64", 2**63),
        ("UINT64", "uint64", 2**64),
        ("UINT64", "uint64", -1),
        ("INT32", "int32", 1.0),
        ("INT32", "int32", 1.5),
        ("FP16", "float16", 65520),
        ("BOOL", "bool", 1),
        ("INT8", "int8", True),
    ],
)
def test_no_value_is_changed_to_fit(datatype: str, dtype: str, value: Any) -> None:
    one = Tensor(name="x", dtype=dtype, shape=[1])
    found = refusal({"name": "x", "shape": [1], "datatype": datatype, "data": [value]}, signature=(one,))
    assert found.ref == "input-value"
    assert "'x'" in found.message


def test_a_huge_shape_is_refused_before_anything_is_made_of_it() -> None:
    one = Tensor(name="x", dtype="float32", shape=["n", "m"])
    for shape in ([2**62, 2], [2**40, 0], [0, 2**27], [2**63 - 1, 2**63 - 1]):
        assert refusal(with_(shape=shape, data=[]), signature=(one,)).ref == "input-too-large"
    assert call_of(with_(shape=[2**20, 0], data=[]), signature=(one,)).tensors["x"].size == 0


@pytest.mark.parametrize("word", ["NaN", "Infinity", "-Infinity"])
def test_what_json_has_not_is_told_with_the_name(word: str) -> None:
    body = json.dumps({"inputs": [GOOD, with_(name="other")]}).replace('"other", "shape": [2, 2]', '"o", "shape": [1]')
    body = body[: body.rindex("4")] + word + body[body.rindex("4") + 1 :]
    with pytest.raises(InputError, match="input 'o' is NaN or infinite"):
        read_call(body.encode(), None, (X,), (Y,))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"3", b"\xff", b"[" * 10**5, b'{"inputs": 3}', b"{}", b'{"a": 1}'])
def test_what_is_no_call_is_refused(body: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_call(body, None, (X,), (Y,))
    assert caught.value.ref in ("json-wrong", "call-wrong")


@pytest.mark.parametrize(
    "more",
    [
        {"outputs": [{"name": "y"}, {"name": "y"}]},
        {"outputs": [{"name": "y", "parameters": {"classification": 3}}]},
        {"outputs": [{"name": "y", "parameters": {"binary_data": 1}}]},
        {"outputs": ["y"]},
        {"parameters": {"sequence_start": True}},
        {"id": 7},
        {"model": "other"},
    ],
)
def test_what_would_be_dropped_is_refused(more: dict[str, Any]) -> None:
    assert refusal(GOOD, **more).ref == "call-wrong"


# Raw tensors


def raw_call(size: Any, rest: bytes, tensor: Tensor = X, datatype: str = "FP32", shape: Any = (2, 2)) -> Call:
    entry = {"name": "x", "shape": shape, "datatype": datatype, "parameters": {"binary_data_size": size}}
    text = json.dumps({"inputs": [entry]}).encode()
    return read_call(text + rest, len(text), (tensor,), (Y,))


def test_raw_tensors_are_read_wherever_they_begin() -> None:
    wanted = np.array([[np.nan, 2], [-np.inf, 4]], np.float32)
    for space in range(4):
        entry = {"name": "x", "shape": [2, 2], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
        text = json.dumps({"inputs": [entry]}).encode() + b" " * space
        array = read_call(text + wanted.tobytes(), len(text), (X,), (Y,)).tensors["x"]
        assert array.tobytes() == wanted.tobytes()
        assert array.flags.aligned


@pytest.mark.parametrize("size", [15, 17, -1, "16", True, 16.0, None, 2**70])
def test_wrong_sizes_are_refused(size: Any) -> None:
    with pytest.raises(InputError, match="'x'"):
        raw_call(size, bytes(16))


def test_what_follows_must_be_told() -> None:
    for rest in (bytes(15), bytes(17)):
        with pytest.raises(InputError):
            raw_call(16, rest)
    with pytest.raises(InputError, match="neither 0 nor 1"):
        raw_call(2, b"\1\2", msgspec.structs.replace(M, name="x"), "BOOL", [2])
    with pytest.raises(InputError, match="of a body of"):
        read_call(b"{}", 3, (X,), (Y,))


# Texts, and what numpy or the protocol has no type for

T = Tensor(name="t", dtype="string", shape=["n", 2])
B = Tensor(name="b", dtype="bfloat16", shape=["n"])
MAYBE = Tensor(name="maybe", dtype="optional(int64)", shape=[])
MANY = Tensor(name="many", dtype="seq(float32)", shape=[])
TINY = Tensor(name="tiny", dtype="int4", shape=[2])


def test_texts_are_read_and_written_either_way() -> None:
    texts = np.array([["a", "üß"], ["", "\x00"]], object)
    entry = {"name": "t", "shape": [2, 2], "datatype": "BYTES"}
    plain = call_of({**entry, "data": texts.tolist()}, signature=(T,))
    text, header = write_call({"t": texts})
    raw = read_call(text, header, (T,), (T,))
    assert plain.tensors["t"].tolist() == raw.tensors["t"].tolist() == texts.tolist()
    for binary in (False, True):
        call = Call(None, {}, [Wanted("t", "BYTES", binary)])
        assert read_reply(*write_reply(call, {"t": texts}, model="m", version="1"))["t"].tolist() == texts.tolist()
    assert "takes texts" in refusal({**entry, "data": [1, "a", "b", "c"]}, signature=(T,)).message


@pytest.mark.parametrize("raw", [b"", b"\1\0\0", b"\1\0\0\0", b"\xff\xff\xff\xffa", b"\1\0\0\0a", b"\1\0\0\0\xff" * 2])
def test_texts_that_are_none_are_refused(raw: bytes) -> None:
    with pytest.raises(InputError, match="'x'"):
        raw_call(len(raw), raw, msgspec.structs.replace(T, name="x"), "BYTES", [1, 2])


def test_bfloat16_goes_as_bytes_only() -> None:
    bits = np.array([0x3F80, 0x7FC0], np.uint16)
    text, header = write_call({"b": bits}, {"b": "BF16"})
    found = read_call(text, header, (B,), (B,))
    assert found.tensors["b"].tolist() == bits.tolist()
    error = refusal({"name": "b", "shape": [2], "datatype": "BF16", "data": [1, 2]}, signature=(B,))
    assert error.hint == "send it as binary data"
    with pytest.raises(InputError, match="'b' is BF16"):
        write_reply(Call(None, {}, [Wanted("b", "BF16", False)]), {"b": bits}, model="m", version="1")
    answer = write_reply(Call(None, {}, [Wanted("b", "BF16", True)]), {"b": bits}, model="m", version="1")
    assert read_reply(*answer)["b"].tolist() == bits.tolist()


def test_an_optional_may_be_left_out_both_ways() -> None:
    assert call_of(GOOD, signature=(X, MAYBE)).tensors["maybe"] is None
    given = {"name": "maybe", "shape": [1], "datatype": "INT64", "data": [3]}
    assert call_of(GOOD, given, signature=(X, MAYBE)).tensors["maybe"].tolist() == [3]
    call = Call(None, {}, [Wanted("maybe", "INT64", False), Wanted("best", "INT64", False)])
    found = answer(call, maybe=None, best=np.array([1]))
    assert [one["name"] for one in found["outputs"]] == ["best"]


@pytest.mark.parametrize("port", [MANY, TINY])
def test_what_the_protocol_has_no_form_for_is_refused_with_a_way_out(port: Tensor) -> None:
    error = refusal({"name": port.name, "shape": [2], "datatype": "FP32", "data": [1, 2]}, signature=(port,))
    assert port.dtype in error.message
    assert "ruvrun run" in str(error.hint)
    call = read_call(b'{"inputs": []}', None, (), (port, Z))
    with pytest.raises(InputError, match="no form"):
        answer(call, best=np.array([1]), **{port.name: [np.zeros(1)]})
    call = read_call(b'{"inputs": [], "outputs": [{"name": "best"}]}', None, (), (port, Z))
    assert answer(call, best=np.array([1]), **{port.name: [np.zeros(1)]})["outputs"][0]["data"] == [1]
    with pytest.raises(InputError, match="no form"):
        write_call({"many": [np.zeros(1)]})
