"""What cannot be cut stays in one stage: silently where that is possible, else with the nodes that it is about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ruvcompile.errors import FitError, RuvError, UsageError
from ruvcompile.passes.cuts import boundaries
from ruvcompile.passes.pieces import program_units
from ruvcompile.passes.units import units
from ruvcompile.plan.places import named_cuts
from ruvcompile.whole import observe
from ruvrun.pipeline import open_local
from tests.compiler.builds import build, check_whole, plan
from tests.graphs import assert_equal, make_model, program_of, run_cut, run_original, tensor, weight

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def around_a_sequence() -> onnx.ModelProto:
    """A sequence is made first and read last; what lies in between has nothing to do with it."""
    return make_model(
        [
            helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="gather up"),
            helper.make_node("Relu", ["x"], ["a"], name="first"),
            helper.make_node("Exp", ["a"], ["b"], name="second"),
            helper.make_node("Neg", ["b"], ["c"], name="third"),
            helper.make_node("ConcatFromSequence", ["s"], ["t"], name="put together", axis=0),
            helper.make_node("Concat", ["c", "t"], ["y"], name="last", axis=0),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [6, 3])],
    )


def only_loop(then: str = "Add") -> onnx.ModelProto:
    """Two nodes, one of which is a loop with a body of three."""
    body = helper.make_graph(
        [
            helper.make_node(then, ["carried", "x"], ["inner"]),
            helper.make_node("Neg", ["inner"], ["next"]),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("carried", [2, 3])],
        [tensor("go_on", [], TensorProto.BOOL), tensor("next", [2, 3])],
    )
    return make_model(
        [
            helper.make_node("Loop", ["n", "yes", "x"], ["a"], name="the loop", body=body),
            helper.make_node("Add", ["a", "w"], ["y"], name="after"),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        [weight("n", 3, np.int64), weight("yes", True, np.bool_), weight("w", [1, 2, 3])],
    )


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(model, folder / "net.onnx")
    return folder / "net.onnx"


def test_nodes_around_what_stays_together_are_free(tmp_path) -> None:
    """In the order of the file no cut is legal."""
    model = around_a_sequence()
    program = program_of(model)
    assert not any(cut.legal for cut in boundaries(units(program.model))[:4])
    found = program_units(program)
    assert ("gather up", "put together") in [unit.nodes for unit in found]
    for number, cut in enumerate(boundaries(found), 1):
        assert cut.legal, cut.reason
        assert_equal(run_cut(program.model, found, [number], {"x": X}), run_original(model, {"x": X}))
    result = build(saved(model, tmp_path), tmp_path / "dist", nodes="4", stages=4)
    assert sum(stage["graph_nodes"] for stage in result["stages"]) == 6
    check_whole(tmp_path / "dist")
    assert_equal(open_local(tmp_path / "dist" / "manifest.toml").run({"x": X}), run_original(model, {"x": X}))


def test_a_circle_around_what_stays_together_is_part_of_it() -> None:
    """The second half of a pair reads what is made of the first: all three are on one side of any cut."""
    model = make_model(
        [
            helper.make_node("SequenceConstruct", ["x", "x"], ["s"], name="pair"),
            helper.make_node("SequenceLength", ["s"], ["n"], name="count"),
            helper.make_node("Sub", ["n", "one"], ["last"], name="one less"),
            helper.make_node("SequenceAt", ["s", "last"], ["t"], name="pick"),
            helper.make_node("Relu", ["t"], ["y"], name="then"),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        [weight("one", 1, np.int64)],
    )
    program = program_of(model)
    found = program_units(program)
    assert [unit.nodes for unit in found] == [("pair", "count", "one less", "pick"), ("then",)]
    assert_equal(run_cut(program.model, found, [1], {"x": X}), run_original(model, {"x": X}))


def test_a_sequence_that_enters_is_read_first_and_one_that_leaves_is_made_last() -> None:
    """The other way round every cut would have to carry it."""
    sequence = helper.make_tensor_sequence_value_info
    model = make_model(
        [
            helper.make_node("SplitToSequence", ["x"], ["out"], name="apart", axis=0),
            helper.make_node("Relu", ["x"], ["a"], name="first"),
            helper.make_node("Exp", ["a"], ["b"], name="second"),
            helper.make_node("ConcatFromSequence", ["in"], ["t"], name="joined", axis=0),
            helper.make_node("Concat", ["b", "t"], ["y"], name="last", axis=0),
        ],
        [tensor("x", [2, 3]), sequence("in", TensorProto.FLOAT, None)],
        [tensor("y", None), sequence("out", TensorProto.FLOAT, None)],
    )
    program = program_of(model)
    found = program_units(program, observe(program.model, {"x": X, "in": [X]}))
    assert [unit.nodes[0] for unit in found] == ["joined", "first", "second", "last", "apart"]
    assert [cut.legal for cut in boundaries(found)] == [True] * 4


def test_more_stages_than_there_are_places(tmp_path) -> None:
    with pytest.raises(FitError) as caught:
        plan(saved(only_loop(), tmp_path), tmp_path, nodes="3")
    assert caught.value.ref == "stages-over-units"
    assert caught.value.exit_code == 4
    assert caught.value.message == "this model can be cut into at most 2 stages, not 3"
    assert caught.value.context == ("each of its nodes stays whole, with all that is inside it: the loop, after",)
    assert caught.value.hint == "--stages 2, or leave it to the plan"


def test_what_holds_a_graph_together_is_told_with_its_nodes_and_the_reason(tmp_path) -> None:
    with pytest.raises(FitError) as caught:
        plan(saved(around_a_sequence(), tmp_path), tmp_path, nodes="6")
    assert caught.value.message == "this model can be cut into at most 5 stages, not 6"
    assert caught.value.context[0] == "gather up, put together stay together: s is no tensor but of kind sequence"


@pytest.mark.parametrize(
    ("model", "cut", "ref", "said"),
    [
        (around_a_sequence(), "s", "cut-illegal", "s is no tensor but of kind sequence"),
        (around_a_sequence(), "s", "cut-illegal", "gather up, put together stay together"),
        (around_a_sequence(), "x", "cut-count", "--cut names 0 cuts, 2 stages need 1"),
        (only_loop(), "inner", "cut-unknown", "inner is made in a body of the loop (Loop), which stays in one stage"),
        (only_loop(), "w", "cut-unknown", "w is a weight: every stage that reads it holds it"),
        (only_loop(), "y", "cut-unknown", "y is read by nobody on the other side of a possible cut"),
        (only_loop(), "the loop", "cut-unknown", "the loop is a node; it makes a"),
        (only_loop(), "aa", "cut-unknown", "did you mean 'a'"),
    ],
)
def test_a_forced_cut_that_cannot_be_says_why(tmp_path, model, cut, ref, said) -> None:
    with pytest.raises(RuvError) as caught:
        plan(saved(model, tmp_path), tmp_path, cut=cut)
    assert caught.value.ref == ref
    assert said in f"{caught.value}"
    assert caught.value.exit_code == 2


def diamond() -> onnx.ModelProto:
    """Two branches that run side by side, a result on the way, and an end."""
    return make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Abs", ["a"], ["early"]),
            helper.make_node("Neg", ["a"], ["b"]),
            helper.make_node("Exp", ["a"], ["c"]),
            helper.make_node("Add", ["b", "c"], ["d"]),
            helper.make_node("Neg", ["d"], ["y"]),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("early", [2, 3])],
    )


@pytest.mark.parametrize(
    ("named", "cuts"),
    [("a", [1]), ("ab", [3]), ("bc", [4]), ("d", [5]), ("ad", [1, 5]), ("abc", [1, 4]), ("abcd", [1, 4, 5])],
)
def test_names_are_taken_for_the_cuts_they_make(named, cuts) -> None:
    """``a`` crosses alone behind its maker and behind the early result: the first is meant."""
    program = program_of(diamond())
    found = program_units(program)
    edges = boundaries(found)
    wires = [edge.tensors for edge in edges]
    assert named_cuts(program.model.graph, found, edges, wires, list(named), len(cuts)) == cuts


def test_names_that_are_no_cut_say_what_else_crosses() -> None:
    program = program_of(diamond())
    found = program_units(program)
    edges = boundaries(found)
    with pytest.raises(UsageError) as caught:
        named_cuts(program.model.graph, found, edges, [edge.tensors for edge in edges], ["c"], 1)
    assert caught.value.ref == "cut-count"
    assert caught.value.context == ("where c crosses, so do b",)
