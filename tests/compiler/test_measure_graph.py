from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ruvcompile.measure.graph import Event, attribute, measure_graph
from ruvcompile.program import Program, Source
from tests.graphs import make_model, program_of, tensor, weight


def branching():
    """An If between two plain nodes; the body has names of its own."""
    then = helper.make_graph(
        [helper.make_node("MatMul", ["a", "w"], ["t"], name="big")], "then", [], [tensor("t", [3, 3])]
    )
    other = helper.make_graph(
        [helper.make_node("MatMul", ["w", "a"], ["e"], name="other")], "else", [], [tensor("e", [3, 3])]
    )
    return program_of(
        make_model(
            [
                helper.make_node("Relu", ["x"], ["a"], name="first"),
                helper.make_node("If", ["flag"], ["b"], name="choice", then_branch=then, else_branch=other),
                helper.make_node("Conv2", ["b"], ["c"], name="conv_1", domain="test"),
                helper.make_node("Relu", ["c"], ["y"], name="conv_12"),
            ],
            [tensor("x", [3, 3]), tensor("flag", [], TensorProto.BOOL)],
            [tensor("y", [3, 3])],
            [weight("w", np.ones((3, 3)))],
        )
    ).model.graph


@pytest.mark.parametrize(
    ("events", "wanted"),
    [
        ([("first", "Relu", 1), ("choice", "If", 9), ("big", "MatMul", 8)], {"first": 1, "choice": 9}),
        ([("big", "MatMul", 8), ("choice", "If", 9)], {"choice": 9}),
        ([("big", "MatMul", 8), ("big", "MatMul", 8)], {"choice": 16}),
        ([("conv_12/fused", "Relu", 3), ("x_conv_1_y", "Conv2", 4)], {"conv_12": 3, "conv_1": 4}),
        ([("y_nchwc", "Conv2", 5)], {"conv_1": 5}),
        ([("ReorderInput", "ReorderInput", 2), ("conv_1", "Conv2", 3)], {"conv_1": 5}),
        ([("conv_1", "Conv2", 3), ("ReorderOutput_token_5", "ReorderOutput", 2)], {"conv_1": 5}),
        ([("nobody's", "Relu", 2)], {"first": 2}),
    ],
    ids=["parent once", "child first", "only children", "words", "outputs", "before", "after", "unknown"],
)
def test_every_event_is_counted_once_and_for_the_right_node(events, wanted) -> None:
    found = attribute(branching(), [Event(*event) for event in events])
    assert {name: cost for name, cost in found.items() if cost} == wanted


def test_four_hundred_small_adds_cost_what_a_run_costs(monkeypatch) -> None:
    """The profile of so many small nodes adds up to many times the truth; only the shares may come from it."""
    monkeypatch.setattr("ruvcompile.measure.graph.time_whole", lambda *_: 10.0)
    program = program_of(
        make_model(
            [helper.make_node("Add", [f"v{i}", "one"], [f"v{i + 1}"]) for i in range(400)],
            [tensor("v0", [1, 8])],
            [tensor("v400", [1, 8])],
            [weight("one", np.ones(8))],
        )
    )
    arrays = {"v0": np.zeros((1, 8), np.float32)}
    costs = measure_graph(program, arrays, 1)
    assert len(costs) == 400
    assert all(cost > 0 for cost in costs.values())
    assert sum(costs.values()) == pytest.approx(10.0)


def test_the_large_node_is_the_dear_one() -> None:
    program = program_of(
        make_model(
            [
                helper.make_node("MatMul", ["x", "w"], ["a"], name="large"),
                helper.make_node("MatMul", ["a", "v"], ["b"], name="small"),
            ],
            [tensor("x", [64, 512])],
            [tensor("b", [64, 2])],
            [weight("w", np.ones((512, 512))), weight("v", np.ones((512, 2)))],
        )
    )
    costs = measure_graph(program, {"x": np.ones((64, 512), np.float32)}, 1)
    assert costs["large"] > costs["small"] > 0


def test_one_interruption_does_not_make_a_node_dear(monkeypatch) -> None:
    """In one of five runs a small node takes as long as a thousand of its kind."""
    graph = branching()
    usual = [Event("first", "Relu", 2.0), Event("choice", "If", 90.0), Event("conv_1", "Conv2", 4.0)]
    interrupted = [Event("first", "Relu", 5000.0), *usual[1:]]
    runs = [usual, usual, interrupted, usual, usual]
    monkeypatch.setattr("ruvcompile.measure.graph._profile", lambda *_: runs)
    monkeypatch.setattr("ruvcompile.measure.graph.time_whole", lambda *_: 96.0)
    costs = measure_graph(Program("test", ir.Model(graph, ir_version=10), Source("test.onnx", ""), None), {}, 1)
    assert costs == {"first": 2.0, "choice": 90.0, "conv_1": 4.0, "conv_12": 0.0}
