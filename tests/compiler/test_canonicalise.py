from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.passes.canonicalise import canonicalise
from ruvcompile.passes.scope import all_nodes
from ruvcompile.whole import run_whole
from ruvrun.errors import InputError
from tests.graphs import (
    PP_OCR,
    assert_equal,
    make_model,
    model_path,
    program_of,
    raw_program,
    run_original,
    tensor,
    weight,
)
from tests.strategies import small_graphs

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def names(model: ir.Model) -> list[str]:
    return [node.name or "" for node in all_nodes(model.graph)]


@settings(max_examples=60, deadline=None)
@given(small_graphs())
def test_any_graph_keeps_its_results_and_gets_the_form(model) -> None:
    program = program_of(model)
    graph = program.model.graph
    assert all(names(program.model))
    assert len(set(names(program.model))) == len(names(program.model))
    assert not [node for node in graph if node.op_type == "Constant"]
    assert not [value for value in graph.outputs if value.is_initializer()]
    assert [value.name for value in graph.inputs] == [value.name for value in model.graph.input]
    assert [value.name for value in graph.outputs] == [value.name for value in model.graph.output]
    arrays = {value.name: X + index for index, value in enumerate(model.graph.input[:-1])} | {"flag": np.array(True)}
    assert_equal(run_whole(program.model, arrays, threads=1), run_original(model, arrays))


@settings(max_examples=25, deadline=None)
@given(small_graphs())
def test_twice_is_once_and_the_given_model_is_not_changed(model) -> None:
    raw = raw_program(model)
    before = ir.to_proto(raw.model).SerializeToString(deterministic=True)
    once = canonicalise(raw)
    assert ir.to_proto(raw.model).SerializeToString(deterministic=True) == before
    bytes_once = ir.to_proto(once.model).SerializeToString(deterministic=True)
    assert ir.to_proto(canonicalise(once).model).SerializeToString(deterministic=True) == bytes_once


def test_default_domain_is_written_one_way() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2, 3])], [tensor("y", [2, 3])])
    model.opset_import[0].domain = "ai.onnx"
    assert dict(program_of(model).model.graph.opset_imports) == {"": 18}


def test_an_input_with_a_default_is_a_weight() -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [2, 3]), tensor("w", [3])],
        [tensor("y", [2, 3])],
        [weight("w", [1, 2, 3])],
    )
    model.ir_version = 3
    program = program_of(model)
    assert [value.name for value in program.model.graph.inputs] == ["x"]
    assert_equal(run_whole(program.model, {"x": X}), {"y": X + np.float32([1, 2, 3])})


@pytest.mark.parametrize(
    ("attribute", "wanted"),
    [
        ({"value_float": 2.5}, np.float32(2.5)),
        ({"value_floats": [1.0, 2.0]}, np.float32([1, 2])),
        ({"value_int": 7}, np.int64(7)),
        ({"value_ints": [7, 8, 9]}, np.int64([7, 8, 9])),
        ({"value": weight("t", [[1, 2]], np.int32)}, np.int32([[1, 2]])),
    ],
)
def test_every_form_of_constant_becomes_a_weight(attribute, wanted) -> None:
    model = make_model([helper.make_node("Constant", [], ["c"], **attribute)], [], [tensor("c", None)])
    model.graph.node.append(helper.make_node("Identity", ["c"], ["y"]))
    model.graph.output[0].name = "y"
    model.graph.output[0].type.tensor_type.elem_type = helper.np_dtype_to_tensor_dtype(wanted.dtype)
    program = program_of(model)
    held = program.model.graph.initializers["c"].const_value
    assert held is not None
    np.testing.assert_array_equal(held.numpy(), wanted)
    assert held.numpy().dtype == wanted.dtype


def test_dead_nodes_go_with_what_only_their_bodies_read() -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["mid"], ["b"])], "branch", [], [tensor("b", [2, 3])])
    model = make_model(
        [
            helper.make_node("Add", ["x", "w"], ["mid"], name="only for the dead If"),
            helper.make_node("If", ["flag"], ["dead"], name="dead", then_branch=branch, else_branch=branch),
            helper.make_node("Relu", ["x"], ["y"], name="live"),
        ],
        [tensor("x", [2, 3]), tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", [2, 3])],
        [weight("w", [1, 2, 3])],
    )
    program = program_of(model)
    assert names(program.model) == ["live"]
    assert not program.model.graph.initializers


def test_a_weight_that_is_an_output_goes_through_an_identity_under_its_own_name() -> None:
    model = make_model(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3]), tensor("w", [3])],
        [weight("w", [1, 2, 3])],
    )
    program = program_of(model)
    assert program.model.graph.outputs[1].producer().op_type == "Identity"
    assert_equal(run_whole(program.model, {"x": X}), {"y": X + np.float32([1, 2, 3]), "w": np.float32([1, 2, 3])})


def test_an_optional_input_left_out_stays_left_out() -> None:
    model = make_model(
        [helper.make_node("Clip", ["x", "", "high"], ["y"])],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        [weight("high", 1)],
    )
    program = program_of(model)
    assert [value and value.name for value in program.model.graph[0].inputs] == ["x", None, "high"]
    assert_equal(run_whole(program.model, {"x": X}), {"y": np.minimum(X, 1)})


def test_loops_with_the_same_inner_names_keep_their_own_meaning() -> None:
    def loop(out: str, operator: str) -> object:
        body = helper.make_graph(
            [
                helper.make_node(operator, ["carried", "x"], ["next"], name="step"),
                helper.make_node("Identity", ["go"], ["go_on"], name=""),
            ],
            "body",
            [tensor("i", [], TensorProto.INT64), tensor("go", [], TensorProto.BOOL), tensor("carried", [2, 3])],
            [tensor("go_on", [], TensorProto.BOOL), tensor("next", [2, 3])],
        )
        return helper.make_node("Loop", ["n", "yes", "x"], [out], body=body)

    model = make_model(
        [loop("a", "Add"), loop("b", "Mul")],
        [tensor("x", [2, 3])],
        [tensor("a", [2, 3]), tensor("b", [2, 3])],
        [weight("n", 2, np.int64), weight("yes", True, np.bool_)],
    )
    program = program_of(model)
    assert names(program.model) == ["Loop/a", "step", "Identity/go_on", "Loop/b", "step.2", "Identity/go_on.2"]
    assert_equal(run_whole(program.model, {"x": X}), {"a": 3 * X, "b": X**3})


@pytest.mark.model
def test_constants_of_the_real_detector_become_weights() -> None:
    program = passes.run(load(str(model_path(PP_OCR))))
    assert len(program.model.graph) == 330
    assert len(program.model.graph.initializers) == 342
    assert len(set(names(program.model))) == 330


def test_a_graph_that_computes_nothing_is_refused() -> None:
    model = make_model([helper.make_node("Relu", ["x"], ["unread"])], [tensor("x", [2, 3])], [tensor("x", [2, 3])])
    with pytest.raises(InputError) as caught:
        program_of(model)
    assert caught.value.ref == "model-computes-nothing"


def test_a_failing_pass_is_named(monkeypatch) -> None:
    def explode(program):
        raise KeyError("mistake")

    monkeypatch.setattr(passes, "PASSES", (canonicalise, explode))
    model = make_model([helper.make_node("Relu", ["x"], ["y"])], [tensor("x", [2, 3])], [tensor("y", [2, 3])])
    with pytest.raises(KeyError) as caught:
        passes.run(raw_program(model))
    assert caught.value.__notes__ == ["in pass explode, after canonicalise, on test.onnx"]
