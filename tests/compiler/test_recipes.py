"""Small graphs that break tools which cut models, through the front door: built in stages, and run.

Each is equal to what ONNX Runtime says of the very file. What the steps in between make of such graphs is tested
where the steps are (``test_cuts``, ``test_extract``, ``test_canonicalise``); what they cost, in ``test_recipes_cost``.
"""

from __future__ import annotations

import time

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ruvrun.bundle import load_spec
from ruvrun.pipeline import open_local
from tests.compiler.builds import plan
from tests.compiler.recipes import BOTH, FLAG, X, branches, built, check_cut
from tests.graphs import assert_equal, make_model, tensor, weight


@pytest.mark.parametrize("cut", ["a", "r"])
def test_what_only_branches_read_is_read_by_the_node_that_has_them(tmp_path, cut) -> None:
    inner = branches([helper.make_node("Mul", ["r", "w"], ["t"])], [helper.make_node("Sub", ["r", "w"], ["e"])])
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Abs", ["a"], ["r"]),
            helper.make_node("If", ["flag"], ["y"], **inner),
        ],
        [tensor("x", [2, 3]), FLAG],
        [tensor("y", [2, 3])],
        [weight("w", [1, 2, 3])],
    )
    check_cut(model, tmp_path, cut, BOTH)


@pytest.mark.parametrize("cut", ["a", "a,r", "a,r,deep", "r,l"])
def test_what_a_branch_in_a_loop_reads_too(tmp_path, cut) -> None:
    """Bodies in bodies: values of the graph, weights, and what the loop around carries."""
    deep = [helper.make_node("Add", ["carried", "deep"], ["p"]), helper.make_node("Mul", ["p", "r"], ["t"])]
    inner = branches(deep, [helper.make_node("Sub", ["carried", "w"], ["e"])])
    body = helper.make_graph(
        [
            helper.make_node("Less", ["i", "one"], ["at first"]),
            helper.make_node("If", ["at first"], ["next"], **inner),
            helper.make_node("Identity", ["go"], ["go_on"]),
        ],
        "body",
        [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("carried", [2, 3])],
        [tensor("go_on", [], TensorProto.BOOL), tensor("next", [2, 3])],
    )
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("Exp", ["a"], ["r"]),
            helper.make_node("Neg", ["x"], ["deep"]),
            helper.make_node("Loop", ["n", "yes", "a"], ["l"], body=body),
            helper.make_node("Add", ["l", "r"], ["y"]),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        [weight("n", 3, np.int64), weight("one", 1, np.int64), weight("yes", True, np.bool_), weight("w", [1, 2, 3])],
    )
    check_cut(model, tmp_path, cut, [{"x": X}])


def test_what_the_body_of_a_scan_reads(tmp_path) -> None:
    body = helper.make_graph(
        [helper.make_node("Add", ["sum", "row"], ["more"]), helper.make_node("Mul", ["more", "r"], ["out"])],
        "body",
        [tensor("sum", [3]), tensor("row", [3])],
        [tensor("more", [3]), tensor("out", [3])],
    )
    model = make_model(
        [
            helper.make_node("Relu", ["x"], ["a"]),
            helper.make_node("ReduceMax", ["a", "rows"], ["r"], keepdims=0),
            helper.make_node("Scan", ["start", "a"], ["end", "y"], num_scan_inputs=1, body=body),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("end", [3])],
        [weight("start", [0, 0, 0]), weight("rows", [0], np.int64)],
    )
    check_cut(model, tmp_path, "a,r", [{"x": X}])


def test_functions_of_one_name_are_told_apart(tmp_path) -> None:
    imports = [helper.make_opsetid("", 18)]
    functions, nodes = [], []
    for overload, operator, read, made in (("one", "Neg", "x", "a"), ("two", "Exp", "a", "y")):
        inner = helper.make_node(operator, ["p"], ["q"])
        functions.append(helper.make_function("local", "f", ["p"], ["q"], [inner], imports, overload=overload))
        nodes.append(helper.make_node("f", [read], [made], domain="local", overload=overload))
    model = make_model(nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])], domains={"local": 1}, functions=functions)
    check_cut(model, tmp_path, "a", [{"x": X}])


def test_a_function_that_is_called_only_inside_a_branch_comes_along(tmp_path) -> None:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
    inside = helper.make_function("local", "inside", ["p"], ["q"], [helper.make_node("Neg", ["p"], ["q"])], imports)
    called = [helper.make_node("inside", ["p"], ["m"], domain="local"), helper.make_node("Exp", ["m"], ["q"])]
    outside = helper.make_function("local", "outside", ["p"], ["q"], called, imports)
    inner = branches(
        [helper.make_node("outside", ["a"], ["t"], domain="local")], [helper.make_node("Identity", ["a"], ["e"])]
    )
    model = make_model(
        [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("If", ["flag"], ["y"], **inner)],
        [tensor("x", [2, 3]), FLAG],
        [tensor("y", [2, 3])],
        domains={"local": 1},
        functions=[inside, outside],
    )
    check_cut(model, tmp_path, "a", BOTH)


def test_a_cut_behind_an_operator_that_inference_does_not_know_gets_its_type_from_a_run(tmp_path) -> None:
    fused = helper.make_node("FusedMatMul", ["x", "x"], ["s"], domain="com.microsoft", transB=1)
    model = make_model(
        [fused, helper.make_node("Relu", ["s"], ["y"])],
        [tensor("x", ["rows", 3])],
        [tensor("y", ["rows", "rows"])],
        domains={"com.microsoft": 1},
    )
    cases = [{"x": X}, {"x": np.ones((5, 3), np.float32)}]
    specs = check_cut(model, tmp_path, "s", cases, shape=("x=2x3",))
    assert specs[1].inputs[0].dtype == "float32"
    assert len(specs[1].inputs[0].shape) == 2


@pytest.mark.parametrize("outputs", ["cx", "xac"])
def test_an_input_that_is_an_output_comes_through_as_it_is(tmp_path, outputs) -> None:
    """The last stage has nothing to do with x but to hand it on."""
    names = ("Relu", "x", "a"), ("Exp", "a", "b"), ("Neg", "b", "c")
    model = make_model(
        [helper.make_node(operator, [read], [made]) for operator, read, made in names],
        [tensor("x", [2, 3])],
        [tensor(name, [2, 3]) for name in outputs],
    )
    specs = check_cut(model, tmp_path, "a", [{"x": X}])
    assert "x" in specs[0].forward
    assert "x" not in [port.name for port in (*specs[1].inputs, *specs[1].outputs)]


def test_one_stage_that_hands_its_input_on(tmp_path) -> None:
    relu = helper.make_node("Relu", ["x"], ["a"])
    model = make_model([relu], [tensor("x", [2, 3])], [tensor("a", [2, 3]), tensor("x", [2, 3])])
    built(model, tmp_path, nodes="1")
    assert_equal(open_local(tmp_path / "dist" / "manifest.toml").run({"x": X}), {"a": np.maximum(X, 0), "x": X})
    # It is handed on beside the graph: where an input is listed as an output, OpenVINO reads memory that nobody wrote.
    spec = load_spec(tmp_path / "dist" / "bundles" / "host-0")
    assert {port.name for port in spec.inputs}.isdisjoint(port.name for port in spec.outputs)


def test_loops_with_the_same_inner_names_are_cut_apart(tmp_path) -> None:
    def loop(source: str, out: str, operator: str) -> onnx.NodeProto:
        body = helper.make_graph(
            [helper.make_node(operator, ["carried", "x"], ["next"]), helper.make_node("Identity", ["go"], ["go_on"])],
            "body",
            [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("carried", [2, 3])],
            [tensor("go_on", [], TensorProto.BOOL), tensor("next", [2, 3])],
        )
        return helper.make_node("Loop", ["n", "yes", source], [out], body=body)

    model = make_model(
        [loop("x", "a", "Add"), loop("a", "b", "Mul"), helper.make_node("Neg", ["b"], ["next"])],
        [tensor("x", [2, 3])],
        [tensor("next", [2, 3])],
        [weight("n", 2, np.int64), weight("yes", True, np.bool_)],
    )
    specs = check_cut(model, tmp_path, "a", [{"x": X}])
    assert set(specs[0].forward) == {"a", "x"}, "x is captured by the second body"


def test_a_weight_that_is_an_output_and_an_input_that_is_left_out(tmp_path) -> None:
    model = make_model(
        [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Clip", ["a", "", "high"], ["y"])],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("high", [])],
        [weight("high", 1)],
    )
    check_cut(model, tmp_path, "a", [{"x": X}])


def test_names_of_dimensions_survive_the_cut(tmp_path) -> None:
    model = make_model(
        [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Transpose", ["a"], ["y"], perm=[2, 1, 0])],
        [tensor("x", ["batch", 3, "length"])],
        [tensor("y", ["length", 3, "batch"])],
    )
    cases = [{"x": np.random.default_rng(0).standard_normal((n, 3, 7 * n)).astype(np.float32)} for n in (1, 2)]
    specs = check_cut(model, tmp_path, "a", cases, shape=("x=1x3x5",))
    assert specs[0].outputs[0].shape == specs[1].inputs[0].shape == ["batch", 3, "length"]
    assert specs[1].outputs[0].shape == ["length", 3, "batch"]


def test_a_chain_of_twenty_thousand_nodes_is_planned_in_seconds(tmp_path) -> None:
    """Nothing is quadratic, nothing recurs from node to node: else it would be hours, or an error."""
    count = 20_000
    nodes = [helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    onnx.save(make_model(nodes, [tensor("v0", ["n", 8])], [tensor(f"v{count}", ["n", 8])]), tmp_path / "net.onnx")
    start = time.process_time()
    result = plan(tmp_path / "net.onnx", tmp_path, shape=("v0=1x8",))
    assert time.process_time() - start < 60  # of all threads; wall time depends on who else is at work
    assert [stage["graph_nodes"] for stage in result["stages"]] == [count // 2] * 2
    assert result["stages"][0]["cut_bytes"] == 32
