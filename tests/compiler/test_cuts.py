from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.passes.cuts import boundaries, boundary, group, ports, units
from ruvcompile.samples import sample
from ruvcompile.whole import observe, run_whole
from tests.graphs import (
    PP_OCR,
    SILERO_VAD,
    assert_equal,
    make_model,
    model_path,
    program_of,
    run_cut,
    run_original,
    stages,
    tensor,
    weight,
)
from tests.strategies import small_graphs

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


@settings(max_examples=40, deadline=None)
@given(small_graphs(), st.booleans())
def test_two_halves_are_the_whole_at_every_legal_cut(model, flag) -> None:
    program = program_of(model)
    arrays = {value.name: X + index for index, value in enumerate(model.graph.input[:-1])} | {"flag": np.array(flag)}
    wanted = run_original(model, arrays)
    found = units(program.model)
    for k, cut in enumerate(boundaries(found), start=1):
        assert cut.legal, cut.reason
        assert cut == boundary(found, k)
        assert_equal(run_cut(program.model, found, [k], arrays), wanted)


@settings(max_examples=30, deadline=None)
@given(small_graphs(), st.integers(1, 4))
def test_groups_are_a_partition_and_cut_between_as_well(model, number) -> None:
    program = program_of(model)
    arrays = {value.name: X + index for index, value in enumerate(model.graph.input[:-1])} | {"flag": np.array(True)}
    found = units(program.model)
    place = {unit.nodes[0]: index for index, unit in enumerate(found)}
    grouped = group(found, lambda name: str(place[name] % number))
    assert sorted(name for unit in grouped for name in unit.nodes) == sorted(place)
    for k in range(1, len(grouped)):
        assert_equal(run_cut(program.model, grouped, [k], arrays), run_original(model, arrays))


def test_what_a_body_captures_crosses_the_cut_before_it() -> None:
    """r and the weight are read only inside the branches."""
    then = helper.make_graph([helper.make_node("Mul", ["r", "w"], ["t"])], "then", [], [tensor("t", [2, 3])])
    other = helper.make_graph([helper.make_node("Sub", ["r", "w"], ["e"])], "else", [], [tensor("e", [2, 3])])
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"], name="relu"),
            helper.make_node("Abs", ["a"], ["r"], name="abs"),
            helper.make_node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=other),
        ],
        [tensor("x", [2, 3]), tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", [2, 3])],
        [weight("w", [1, 2, 3])],
    )
    program = program_of(model)
    found = units(program.model)
    assert found[2].inputs == ("flag", "r")
    assert found[2].weights == ("w",)
    assert boundary(found, 1).made == ("a",)
    assert boundary(found, 1).inputs == ("flag",)
    for flag in (True, False):
        arrays = {"x": X, "flag": np.array(flag)}
        for k in (1, 2):
            assert_equal(run_cut(program.model, found, [k], arrays), run_original(model, arrays))
    first, second = stages(program.model, found, [1])
    assert not first.graph.initializers
    assert list(second.graph.initializers) == ["w"]


def test_an_input_that_is_an_output_is_relayed_and_no_graph_has_it() -> None:
    model = make_model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Neg", ["a"], ["b"])],
        [tensor("x", [2, 3])],
        [tensor("a", [2, 3]), tensor("x", [2, 3]), tensor("b", [2, 3])],
    )
    program = program_of(model)
    found = units(program.model)
    assert boundary(found, 1).made == ("a",)
    assert boundary(found, 1).results == ("x",)
    assert ports(found, 1, 2).inputs == ("a",)
    assert ports(found, 1, 2).outputs == ("b",)
    assert set(ports(found, 1, 2).forward) == {"a", "x", "b"}
    assert_equal(run_cut(program.model, found, [1], {"x": X}), {"a": np.maximum(X, 0), "x": X, "b": -np.maximum(X, 0)})


def test_what_depends_on_weights_alone_does_not_cross() -> None:
    """A tied embedding: its transpose stands first in the file and is read last."""
    table = np.random.default_rng(0).standard_normal((5, 3))
    model = make_model(
        [
            helper.make_node("Transpose", ["table"], ["turned"], name="turn", perm=[1, 0]),
            helper.make_node("Gather", ["table", "ids"], ["h"], name="look up"),
            helper.make_node("Relu", ["h"], ["g"], name="relu"),
            helper.make_node("MatMul", ["g", "turned"], ["y"], name="head"),
        ],
        [tensor("ids", [2], TensorProto.INT64)],
        [tensor("y", [2, 5])],
        [weight("table", table)],
    )
    program = program_of(model)
    found = units(program.model)
    assert [unit.nodes[0] for unit in found] == ["look up", "relu", "turn", "head"]
    arrays = {"ids": np.array([3, 1])}
    first, second = stages(program.model, found, [2])
    assert list(first.graph.initializers) == list(second.graph.initializers) == ["table"]
    assert_equal(run_cut(program.model, found, [2], arrays), run_original(model, arrays))


@pytest.mark.parametrize(
    ("nodes", "outputs", "why"),
    [
        (
            [
                helper.make_node("SequenceConstruct", ["x"], ["s"]),
                helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=0),
            ],
            [tensor("y", [2, 3])],
            "s is no tensor but of kind sequence",
        ),
        (
            [
                helper.make_node("FusedMatMul", ["x", "x"], ["s"], domain="com.microsoft", transB=1),
                helper.make_node("Relu", ["s"], ["y"]),
            ],
            [tensor("y", [2, 2])],
            "s is of a type that is not known without running the graph",
        ),
    ],
    ids=["sequence", "contrib"],
)
def test_what_no_link_carries_must_not_cross(nodes, outputs, why) -> None:
    program = program_of(make_model(nodes, [tensor("x", [2, 3])], outputs, domains={"com.microsoft": 1}))
    assert boundary(units(program.model), 1).reason == why


@pytest.mark.parametrize("text", [True, False])
def test_what_a_back_end_does_not_give_beside_texts_crosses_only_without_them(text: bool) -> None:
    kind = TensorProto.STRING if text else TensorProto.INT64
    model = make_model(
        [
            helper.make_node("Cast", ["x"], ["f"], name="read", to=TensorProto.FLOAT),
            helper.make_node("Cast", ["f"], ["b"], name="narrow", to=TensorProto.BFLOAT16),
            helper.make_node("Cast", ["b"], ["y"], name="widen", to=TensorProto.FLOAT),
        ],
        [tensor("x", [2], kind)],
        [tensor("y", [2])],
    )
    program = program_of(model)
    found = units(program.model)
    assert [border.legal for border in boundaries(found)] == [True, not text]
    assert ("beside texts" in boundary(found, 2).reason) is text
    array = np.array(["1", "2.5"], object) if text else np.array([1, 2])
    for number, border in enumerate(boundaries(found), 1):
        if border.legal:
            whole = run_whole(program.model, {"x": array})
            assert_equal(run_cut(program.model, found, [number], {"x": array}), whole)


def test_a_run_tells_the_type_that_inference_cannot() -> None:
    model = make_model(
        [
            helper.make_node("FusedMatMul", ["x", "x"], ["s"], domain="com.microsoft", transB=1),
            helper.make_node("Relu", ["s"], ["y"]),
        ],
        [tensor("x", ["rows", 3])],
        [tensor("y", ["rows", "rows"])],
        domains={"com.microsoft": 1},
    )
    program = program_of(model)
    types = observe(program.model, {"x": X})
    found = units(program.model, types)
    assert boundary(found, 1).legal
    for rows in (X, np.ones((4, 3), np.float32)):  # sizes that were seen must not be built in
        assert_equal(run_cut(program.model, found, [1], {"x": rows}, types), run_original(model, {"x": rows}))


def test_a_signed_result_in_the_middle_of_a_quantised_graph_is_no_place_to_cut() -> None:
    """It stays as it is, since the user gets it; and the kernel behind it wants to see where it comes from."""
    model = make_model(
        [
            helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
            helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
            helper.make_node("MatMul", ["d", "wd"], ["y"]),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("q", [2, 3], TensorProto.INT8)],
        [weight("s", 0.1), weight("z", 0, np.int8), weight("w", np.eye(3), np.int8)],
    )
    first, *others = boundaries(units(program_of(model).model))
    assert first.reason == "q is a signed 8-bit tensor, which would lose the quantised kernel behind it"
    assert not any(cut.legal for cut in others)


def test_a_circle_of_groups_becomes_one() -> None:
    model = make_model(
        [
            helper.make_node("Relu", ["x" if i == 0 else f"v{i - 1}"], [f"v{i}"], name=f"{'aab'[i % 3]}{i}")
            for i in range(5)
        ],
        [tensor("x", [2, 3])],
        [tensor("v4", [2, 3])],
    )
    grouped = group(units(program_of(model).model), lambda name: name[0])
    assert [unit.nodes for unit in grouped] == [("a0", "a1", "b2", "a3", "a4")]


def test_groups_by_prefix_hide_what_is_inside() -> None:
    names = ["/embed", "/layers.0/attn/q", "/layers.0/attn/k", "/layers.0/attn/join", "/head"]
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["e"], name=names[0]),
            helper.make_node("Neg", ["e"], ["q"], name=names[1]),
            helper.make_node("Abs", ["e"], ["k"], name=names[2]),
            helper.make_node("Add", ["q", "k"], ["j"], name=names[3]),
            helper.make_node("Relu", ["j"], ["y"], name=names[4]),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
    )
    grouped = group(units(program_of(model).model), lambda name: "/".join(name.split("/")[:3]))
    assert [unit.outputs for unit in grouped] == [("e",), ("j",), ("y",)]
    assert grouped[1].inputs == ("e",)


@pytest.mark.model
def test_silero_vad_at_every_cut() -> None:
    program = passes.run(load(str(model_path(SILERO_VAD))))
    arrays = sample(program.model).arrays
    wanted = run_whole(program.model, arrays, threads=1)
    found = units(program.model, observe(program.model, arrays))
    assert len(found) == 4
    for k, cut in enumerate(boundaries(found), start=1):
        assert cut.legal, cut.reason
        assert_equal(run_cut(program.model, found, [k], arrays), wanted)


@pytest.mark.model
def test_the_detector_in_several_pieces_and_at_another_size() -> None:
    program = passes.run(load(str(model_path(PP_OCR))))
    found = units(program.model)
    assert all(cut.legal for cut in boundaries(found))
    for side in (64, 96):
        arrays = {"x": np.random.default_rng(side).random((1, 3, side, side), np.float32)}
        wanted = run_whole(program.model, arrays, threads=1)
        for cuts in ([40], [165], [290], [100, 200]):
            assert_equal(run_cut(program.model, found, cuts, arrays), wanted)
