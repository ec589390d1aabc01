"""What is chosen for the inputs of models as exporters write them, when the user gives nothing, or only some of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ruvcompile.samples import sample
from ruvrun.errors import InputError, RuvError
from tests.graphs import make_model, program_of, tensor, weight

INT64, INT32, UINT8, BOOL, FLOAT = (
    TensorProto.INT64,
    TensorProto.INT32,
    TensorProto.UINT8,
    TensorProto.BOOL,
    TensorProto.FLOAT,
)
Ports = Mapping[str, tuple[int, Sequence[int | str | None]]]


def only_takes(ports: Ports) -> ir.Model:
    """A graph with these inputs (element type and shape by name), each of which it hands on as floats."""
    nodes = [helper.make_node("Cast", [name], [f"{name}.out"], to=FLOAT) for name in ports]
    inputs = [tensor(name, shape, dtype) for name, (dtype, shape) in ports.items()]
    outputs = [tensor(f"{name}.out", shape) for name, (_, shape) in ports.items()]
    return program_of(make_model(nodes, inputs, outputs)).model


def encoder(tied_names: bool = True) -> ir.Model:
    """What BERT's exports take: ids of a table of 30, types of a table of 2, a mask that is added to their product."""
    axes = [["batch", "sequence"]] * 3 if tied_names else [[None, None]] * 3
    names = ("input_ids", "attention_mask", "token_type_ids")
    random = np.random.default_rng(0)
    nodes = [
        helper.make_node("Unsqueeze", ["input_ids", "last"], ["wide"]),
        helper.make_node("Squeeze", ["wide", "last"], ["narrow"]),
        helper.make_node("Gather", ["words", "narrow"], ["w"]),
        helper.make_node("Gather", ["types", "token_type_ids"], ["t"]),
        helper.make_node("Add", ["w", "t"], ["e"]),
        helper.make_node("Cast", ["attention_mask"], ["m"], to=FLOAT),
        helper.make_node("Unsqueeze", ["m", "last"], ["mask"]),
        helper.make_node("Mul", ["e", "mask"], ["y"]),
    ]
    weights = [weight("words", random.standard_normal((30, 8))), weight("types", random.standard_normal((2, 8)))]
    weights.append(weight("last", [-1], np.int64))
    ports = [tensor(name, shape, INT64) for name, shape in zip(names, axes, strict=True)]
    return program_of(make_model(nodes, ports, [tensor("y", [*axes[0], 8])], weights)).model


def test_an_encoder_of_text() -> None:
    found = sample(encoder())
    assert found.choices == (
        "input input_ids: int64 1x16, random in 0..29 (default)",
        "input attention_mask: int64 1x16, all 1 (default)",
        "input token_type_ids: int64 1x16, all 0 (default)",
    )
    assert len(np.unique(found.arrays["input_ids"])) > 5


@pytest.mark.parametrize("tied_names", [True, False])
def test_what_is_given_for_one_input_is_followed_by_the_others(tmp_path, tied_names) -> None:
    """Seven is no size that anybody would try; with names or without, the axes must agree."""
    ids = np.arange(14).reshape(2, 7)
    np.savez(tmp_path / "in.npz", input_ids=ids)
    for flags in ({"inputs": tmp_path / "in.npz"}, {"shapes": {"attention_mask": (2, 7)}}):
        found = sample(encoder(tied_names), **flags)
        assert {array.shape for array in found.arrays.values()} == {(2, 7)}


def test_sizes_that_contradict_each_other_are_told(tmp_path) -> None:
    np.savez(tmp_path / "in.npz", input_ids=np.zeros((1, 7), np.int64), attention_mask=np.ones((1, 8), np.int64))
    with pytest.raises(InputError) as caught:
        sample(encoder(), inputs=tmp_path / "in.npz")
    assert caught.value.ref == "input-sizes-differ"
    assert caught.value.message == "dimension sequence is 7 in input_ids and 8 in attention_mask"
    assert caught.value.exit_code == 3


@pytest.mark.parametrize(
    ("ports", "shapes", "told"),
    [
        ({"x": (FLOAT, ["N", 3, "H", "W"])}, {"x": (1, 3, 224, 224)}, "random in 0..1"),
        ({"image": (FLOAT, [None, None, None, 3])}, {"image": (1, 224, 224, 3)}, "random in 0..1"),
        ({"input": (UINT8, ["batch", "height", "width", 3])}, {"input": (1, 224, 224, 3)}, "random in 0..255"),
        ({"frame": (UINT8, ["height", "width", 3])}, {"frame": (224, 224, 3)}, "random in 0..255"),
        ({"x": (FLOAT, ["batch", "channels", 32, 32])}, {"x": (1, 3, 32, 32)}, "random in 0..1"),
        ({"sample": (FLOAT, ["b", 4, "h", "w"])}, {"sample": (1, 4, 64, 64)}, "random, normal"),
        ({"audio_signal": (FLOAT, [1, "samples"])}, {"audio_signal": (1, 576)}, "noise"),
        ({"input_values": (FLOAT, ["batch", "sequence"])}, {"input_values": (1, 576)}, "noise"),
        ({"input_features": (FLOAT, ["batch", "mel", "time"])}, {"input_features": (1, 80, 16)}, "random, normal"),
        ({"X": (FLOAT, ["seq_length", "batch_size", 5])}, {"X": (16, 1, 5)}, "random, normal"),
        ({"pooled": (FLOAT, ["batch", 8])}, {"pooled": (1, 8)}, "random, normal"),
        ({"position": (INT64, [])}, {"position": ()}, "random in 0..1"),
        ({"position_ids": (INT64, ["batch", "seq"])}, {"position_ids": (1, 16)}, "0, 1, 2, ..."),
        ({"use_cache_branch": (BOOL, [1])}, {"use_cache_branch": (1,)}, "all 1"),
    ],
)
def test_shapes_and_values_by_name_type_and_rank(ports, shapes, told) -> None:
    found = sample(only_takes(ports))
    assert {name: array.shape for name, array in found.arrays.items()} == shapes
    assert told in found.choices[0]
    assert found.choices[0].endswith("(default)")


@pytest.mark.parametrize(
    ("given", "total"),
    [("past_length + sequence_length", 16), ("past_length + 1", 1), ("2*sequence_length + past_length", 32)],
)
def test_a_dimension_that_is_a_sum_is_computed(given, total) -> None:
    """As exporters write the mask of a decoder with a past."""
    ports = {
        "input_ids": (INT64, ["batch", "sequence_length"]),
        "attention_mask": (INT64, ["batch", given]),
        "past_key_values.0.key": (FLOAT, ["batch", 2, "past_length", 4]),
    }
    arrays = sample(only_takes(ports)).arrays
    assert arrays["past_key_values.0.key"].shape == (1, 2, 0, 4)
    assert arrays["attention_mask"].shape == (1, total)


@pytest.mark.parametrize("name", ["sequence_lens", "length", "audio_lengths", "num_frames"])
def test_a_length_is_that_of_what_it_counts(name) -> None:
    """A recogniser of speech that is told it has one frame gives nothing."""
    ports: Ports = {"frames_in": (FLOAT, ["batch", "time", 8]), name: (INT32, ["batch"])}
    found = sample(only_takes(ports))
    assert found.arrays[name].tolist() == [16]
    assert "16, the length of the sequence (default)" in found.choices[1]


def test_a_mask_of_what_is_left_out_is_noughts() -> None:
    """Where all is masked the softmax has nothing to add up; finite results are preferred."""
    nodes = [
        helper.make_node("Where", ["key_padding_mask", "minus", "x"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    ports = [tensor("x", [1, 4]), tensor("key_padding_mask", [1, 4], BOOL)]
    model = make_model(nodes, ports, [tensor("y", [1, 4])], [weight("minus", -np.inf)])
    found = sample(program_of(model).model)
    assert not found.arrays["key_padding_mask"].any()
    assert "all 0 (default)" in found.choices[1]


@pytest.mark.parametrize(
    ("entering", "leaving", "pairs"),
    [
        ("state", "stateN", 1),
        ("h0 c0", "hn cn", 2),
        ("h c", "h_out c_out", 2),
        ("cache_in", "cache_out", 1),
        ("hidden", "next_hidden", 1),
        ("past_key_values.0.key past_key_values.0.value", "present.0.key present.0.value", 2),
        ("x", "x_out", 0),
        ("state", "states", 0),
        ("state", "state_out new_state", 0),
        ("encoder_hidden_states", "last_hidden_state", 0),
    ],
)
def test_an_output_that_feeds_an_input_of_the_next_call_is_told(entering, leaving, pairs) -> None:
    names, made = entering.split(), leaving.split()
    nodes = [helper.make_node("Neg", [name], [out]) for name, out in zip(names * 2, made, strict=False)]
    model = make_model(nodes, [tensor(name, [2, 3]) for name in names], [tensor(out, [2, 3]) for out in made])
    told = [text for text in sample(program_of(model).model).choices if text.startswith("state ")]
    assert len(told) == pairs
    for name, out, text in zip(names, made, told, strict=False):
        assert text == f"state {name}: comes out as {out}; hand it in with the next call"


def test_state_of_another_shape_or_type_is_none() -> None:
    nodes = [helper.make_node("Cast", ["state"], ["state_out"], to=INT64), helper.make_node("Neg", ["cache"], ["n"])]
    nodes.append(helper.make_node("Concat", ["n", "n"], ["cache_out"], axis=0))
    ports = [tensor("state", [2, 3]), tensor("cache", [2, 3])]
    model = make_model(nodes, ports, [tensor("state_out", [2, 3], INT64), tensor("cache_out", [4, 3])])
    assert not [text for text in sample(program_of(model).model).choices if text.startswith("state ")]


@pytest.mark.parametrize("how", ["quantised", "cast"])
def test_ids_stay_below_a_table_that_is_stored_in_another_type(how) -> None:
    """A quantised embedding: rows are dequantised before they are looked up."""
    table = weight("table", np.ones((7, 3)), np.uint8)
    if how == "quantised":
        first = helper.make_node("DequantizeLinear", ["table", "scale"], ["rows"])
    else:
        first = helper.make_node("Cast", ["table"], ["rows"], to=FLOAT)
    model = make_model(
        [first, helper.make_node("Gather", ["rows", "tokens"], ["y"])],
        [tensor("tokens", ["n"], INT32)],
        [tensor("y", ["n", 3])],
        [table, weight("scale", 0.1)],
    )
    assert sample(program_of(model).model).arrays["tokens"].max() == 6


def test_a_long_chain_before_the_lookup_is_followed_without_recursion() -> None:
    nodes = [helper.make_node("Identity", [f"i{k}"], [f"i{k + 1}"]) for k in range(3000)]
    nodes.append(helper.make_node("Gather", ["table", "i3000"], ["y"]))
    model = make_model(nodes, [tensor("i0", [40], INT64)], [tensor("y", [40, 3])], [weight("table", np.ones((7, 3)))])
    assert sample(program_of(model).model).arrays["i0"].max() == 6


@pytest.mark.parametrize(
    ("flags", "ref", "said"),
    [
        ({"shapes": {"input_id": (1, 4)}}, "shape-unknown", "did you mean 'input_ids'"),
        ({"arrays": {"inputids": np.zeros((1, 4), np.int64)}}, "input-unknown", "did you mean 'input_ids'"),
        (
            {"arrays": {"input_ids": np.zeros(4, np.int64)}},
            "input-shape-wrong",
            "input_ids is 4, the model takes batch",
        ),
        ({"arrays": {"input_ids": np.zeros((1, 4), np.float32)}}, "input-type-wrong", ".astype('int64')"),
        ({"arrays": {"input_ids": np.array([["a", "b"]])}}, "input-type-wrong", "the model takes int64"),
        ({"arrays": {"input_ids": np.full((1, 4), 99)}}, "no-sample-runs", "input_ids: int64 1x4"),
        ({"shapes": {"input_ids": (1, 4), "attention_mask": (1, 5)}}, "input-sizes-differ", "dimension sequence is 4"),
        ({"shapes": {"input_ids": (1,)}}, "shape-wrong", "as many sizes as it has dimensions"),
    ],
)
def test_what_is_given_and_does_not_fit(tmp_path, flags, ref, said) -> None:
    arguments: dict[str, Any] = dict(flags)
    if arrays := arguments.pop("arrays", None):
        np.savez(tmp_path / "in.npz", **arrays)
        arguments["inputs"] = tmp_path / "in.npz"
    with pytest.raises(RuvError) as caught:
        sample(encoder(), **arguments)
    assert caught.value.ref == ref
    assert said in f"{caught.value}"
    assert caught.value.hint


def test_integers_for_which_nothing_runs_end_with_the_hint() -> None:
    """A choice of one out of four, by a number that no convention tells."""
    nodes = [
        helper.make_node("Sub", ["mode", "offset"], ["i"]),
        helper.make_node("Gather", ["table", "i"], ["y"]),
    ]
    weights = [weight("offset", 50, np.int64), weight("table", np.ones((4, 3)))]
    model = make_model(nodes, [tensor("mode", [1], INT64)], [tensor("y", [1, 3])], weights)
    onnx.checker.check_model(model)
    with pytest.raises(InputError) as caught:
        sample(program_of(model).model)
    assert caught.value.ref == "no-sample-runs"
    assert caught.value.exit_code == 3
    assert caught.value.context[0] == "mode: int64 1"
    assert "--inputs" in (caught.value.hint or "")
