from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from onnx import TensorProto, helper

from ruvcompile.passes.cuts import units
from ruvcompile.passes.extract import extract
from ruvcompile.passes.infer import Type
from ruvcompile.whole import observe, run_whole
from ruvrun.errors import InputError
from tests.graphs import assert_equal, make_model, program_of, run_cut, run_original, stages, tensor, weight
from tests.strategies import small_graphs

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def chain(*operators: str, shape=(2, 3)):
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, op in enumerate(operators)]
    return make_model(nodes, [tensor("v0", shape)], [tensor(f"v{len(operators)}", shape)])


@settings(max_examples=25, deadline=None)
@given(small_graphs())
def test_the_given_model_is_never_changed_and_pieces_share_nothing_that_can_change(model) -> None:
    program = program_of(model)
    before = ir.to_proto(program.model).SerializeToString(deterministic=True)
    found = units(program.model)
    for piece in stages(program.model, found, range(1, len(found))):
        for node in piece.graph:
            node.name = "changed"
        for value in (*piece.graph.inputs, *piece.graph.outputs):
            value.shape = ir.Shape([7])
        piece.graph.opset_imports[""] = 1
        piece.graph.metadata_props["changed"] = "yes"
        piece.metadata_props["changed"] = "yes"
    assert ir.to_proto(program.model).SerializeToString(deterministic=True) == before


def test_only_what_the_piece_reads_and_the_tensors_stay_lazy() -> None:
    read = []

    def lazy(name: str, values) -> ir.Value:
        array = np.asarray(values, np.float32)

        def fetch() -> ir.Tensor:
            read.append(name)
            return ir.Tensor(array, name=name)

        held = ir.LazyTensor(fetch, dtype=ir.DataType.FLOAT, shape=ir.Shape(array.shape), name=name)
        return ir.Value(name=name, type=ir.TensorType(held.dtype), shape=ir.Shape(array.shape), const_value=held)

    program = program_of(
        make_model(
            [
                helper.make_node("Add", ["x", "a"], ["m"], name="first"),
                helper.make_node("Mul", ["m", "b"], ["y"], name="second"),
            ],
            [tensor("x", [500, 3])],
            [tensor("y", [500, 3])],
            [weight("a", np.ones((500, 3))), weight("b", np.ones(3))],
        )
    )
    graph = program.model.graph
    for name in ("a", "b"):
        value = lazy(name, np.ones((500, 3) if name == "a" else 3))
        graph.initializers[name].replace_all_uses_with(value)
        del graph.initializers[name]
        graph.register_initializer(value)
    first = extract(program.model, ["first"], inputs=["x"], outputs=["m"], name="first", types={})
    assert list(first.graph.initializers) == ["a"]
    assert first.graph.initializers["a"].const_value is graph.initializers["a"].const_value
    assert "a" not in read


def function_model() -> onnx.ModelProto:
    """``outer`` calls ``inner``; it is called only inside one branch. ``unused`` is called nowhere in the graph."""

    def function(name: str, nodes) -> onnx.FunctionProto:
        return helper.make_function(
            "local", name, ["p"], ["q"], nodes, [helper.make_opsetid("", 18), helper.make_opsetid("local", 1)]
        )

    functions = [
        function("inner", [helper.make_node("Neg", ["p"], ["q"])]),
        function(
            "outer", [helper.make_node("inner", ["p"], ["r"], domain="local"), helper.make_node("Abs", ["r"], ["q"])]
        ),
        function("front", [helper.make_node("Relu", ["p"], ["q"])]),
        function("unused", [helper.make_node("Relu", ["p"], ["q"])]),
    ]
    then = helper.make_graph(
        [helper.make_node("outer", ["a"], ["t"], domain="local")], "then", [], [tensor("t", [2, 3])]
    )
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["e"])], "else", [], [tensor("e", [2, 3])])
    return make_model(
        [
            helper.make_node("front", ["x"], ["a"], name="front", domain="local"),
            helper.make_node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=other),
        ],
        [tensor("x", [2, 3]), tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", [2, 3])],
        domains={"local": 1},
        functions=functions,
    )


def test_functions_called_only_inside_a_branch_survive() -> None:
    model = function_model()
    program = program_of(model)
    found = units(program.model)
    first, second = stages(program.model, found, [1])
    assert [key[1] for key in first.functions] == ["front"]
    assert sorted(key[1] for key in second.functions) == ["inner", "outer"]
    for flag in (True, False):
        arrays = {"x": X, "flag": np.array(flag)}
        assert_equal(run_cut(program.model, found, [1], arrays), run_original(model, arrays))


def test_names_of_open_dimensions_and_what_the_model_says_of_itself_are_kept() -> None:
    model = chain("Relu", "Neg", shape=("rows", "columns"))
    model.producer_name, model.domain, model.doc_string = "maker", "example.org", "a test"
    helper.set_model_props(model, {"author": "somebody"})
    model.graph.metadata_props.add(key="part", value="of a graph")
    program = program_of(model)
    for piece in stages(program.model, units(program.model), [1]):
        assert [str(dim) for dim in (piece.graph.inputs[0].shape or ())] == ["rows", "columns"]
        assert [str(dim) for dim in (piece.graph.outputs[0].shape or ())] == ["rows", "columns"]
        assert (piece.producer_name, piece.domain, piece.doc_string) == ("maker", "example.org", "a test")
        assert piece.metadata_props == {"author": "somebody"}
        assert piece.graph.metadata_props == {"part": "of a graph"}
        assert dict(piece.graph.opset_imports) == {"": 18}
        assert piece.ir_version == model.ir_version


def test_an_unknown_cut_type_is_refused_and_a_run_supplies_it() -> None:
    model = make_model(
        [
            helper.make_node("FusedMatMul", ["x", "x"], ["s"], name="fused", domain="com.microsoft", transB=1),
            helper.make_node("Relu", ["s"], ["y"], name="relu"),
        ],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 2])],
        domains={"com.microsoft": 1},
    )
    program = program_of(model)
    with pytest.raises(InputError) as caught:
        extract(program.model, ["fused"], inputs=["x"], outputs=["s"], name="first")
    assert caught.value.ref == "cut-type-unknown"
    assert "FusedMatMul (fused)" in caught.value.context[0]
    types = observe(program.model, {"x": X})
    assert types["s"] == (ir.DataType.FLOAT, (2, 2))
    piece = extract(program.model, ["fused"], inputs=["x"], outputs=["s"], name="first", types=types)
    assert_equal(run_whole(piece, {"x": X}), {"s": X @ X.T})


@pytest.mark.parametrize(
    ("nodes", "inputs", "outputs", "why"),
    [
        (["n1"], [], ["v2"], "n1 reads v1, which is not an input"),
        (["n1"], ["v1"], ["v1", "v2"], "not made inside, so not an output: v1"),
        (["n0", "n1"], ["v0", "v1"], ["v2"], "both an input and made inside: v1"),
        (["n9"], ["v1"], ["v2"], "no node is called n9"),
        (["n1"], ["nope"], ["v2"], "no value is called nope"),
    ],
)
def test_an_open_piece_is_our_own_mistake_and_is_named(nodes, inputs, outputs, why) -> None:
    program = program_of(chain("Relu", "Neg", "Abs"))
    with pytest.raises(ValueError, match=why):
        extract(program.model, nodes, inputs=inputs, outputs=outputs, name="open")


def test_an_open_capture_is_named_too() -> None:
    program = program_of(function_model())
    with pytest.raises(ValueError, match="if reads a, which is not an input"):
        extract(program.model, ["if"], inputs=["flag"], outputs=["y"], name="open")


def test_a_weight_used_only_inside_a_body_comes_along_and_no_other() -> None:
    then = helper.make_graph([helper.make_node("Add", ["a", "inside"], ["t"])], "then", [], [tensor("t", [2, 3])])
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["e"])], "else", [], [tensor("e", [2, 3])])
    model = make_model(
        [
            helper.make_node("Add", ["x", "before"], ["a"], name="first"),
            helper.make_node("If", ["flag"], ["y"], name="if", then_branch=then, else_branch=other),
        ],
        [tensor("x", [2, 3]), tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", [2, 3])],
        [weight("before", [1, 2, 3]), weight("inside", [4, 5, 6])],
    )
    first, second = stages(program_of(model).model, units(program_of(model).model), [1])
    assert list(first.graph.initializers) == ["before"]
    assert list(second.graph.initializers) == ["inside"]


@pytest.mark.parametrize("rows", ["rows", 5])
def test_a_size_that_a_file_states_of_a_value_inside_may_be_an_old_one(rows) -> None:
    """Made for one row, then changed at its inputs: ONNX Runtime runs it, and so do the stages.

    What is said of ``b`` is also believed by inference, which passes it on to ``c``.
    """
    model = make_model(
        [
            helper.make_node("FusedMatMul", ["x", "w"], ["a"], name="first", domain="com.microsoft"),
            helper.make_node("Relu", ["x"], ["b"], name="second"),
            helper.make_node("MatMul", ["b", "w"], ["c"], name="third"),
            helper.make_node("Add", ["a", "c"], ["y"], name="fourth"),
        ],
        [tensor("x", [rows, 4])],
        [tensor("y", None)],
        [weight("w", np.ones((4, 3)))],
        domains={"com.microsoft": 1},
    )
    model.graph.value_info.extend([tensor("a", [1, 3]), tensor("b", [1, 4])])
    program = program_of(model)
    types = observe(program.model, {"x": np.ones((1 if rows == "rows" else rows, 4), np.float32)})
    found = units(program.model, types)
    for cut in (1, 2, 3):
        arrays = {"x": np.arange(20, dtype=np.float32).reshape(5, 4)}
        assert_equal(run_cut(program.model, found, [cut], arrays, types), run_original(model, arrays))
    piece = extract(program.model, ["fourth"], inputs=["a", "c"], outputs=["y"], name="piece", types=types)
    wanted = [["a.0", "a.1"], ["rows", 3]] if rows == "rows" else [["a.0", 3], ["c.0", 3]]
    assert [value.shape for value in piece.graph.inputs] == [ir.Shape(each) for each in wanted]


def test_a_size_that_depends_on_values_is_not_taken_from_one_run() -> None:
    """All inputs are of fixed size; what is behind the contrib operator has no inferred type."""
    model = make_model(
        [
            helper.make_node("NonZero", ["x"], ["z"], name="first"),
            helper.make_node("Cast", ["z"], ["f"], name="second", to=TensorProto.FLOAT),
            helper.make_node("FusedMatMul", ["f", "f"], ["a"], name="third", domain="com.microsoft", transA=1),
            helper.make_node("Neg", ["a"], ["y"], name="fourth"),
        ],
        [tensor("x", [8])],
        [tensor("y", None)],
        domains={"com.microsoft": 1},
    )
    program, few = program_of(model), {"x": np.eye(8, dtype=np.float32)[0]}
    types = observe(program.model, few)
    assert types["a"].shape == (1, 1)
    many = {"x": np.ones(8, np.float32)}
    assert_equal(run_cut(program.model, units(program.model, types), [3], many, types), run_original(model, many))


@pytest.mark.parametrize(("op", "told"), [("Squeeze", ["a.0", "a.1"]), ("Transpose", None)], ids=["sizes", "rank"])
def test_a_branch_that_is_not_taken_may_contradict_what_a_run_tells_of_a_shape(op, told) -> None:
    """Squeeze, or Transpose of three axes, is right for another input only; nobody knows the shape of ``a``."""
    branch = {
        "Squeeze": helper.make_node("Squeeze", ["a", "zero"], ["t"]),
        "Transpose": helper.make_node("Transpose", ["a"], ["t"], perm=[0, 2, 1]),
    }[op]
    then = helper.make_graph([branch], "then", [], [tensor("t", None)])
    other = helper.make_graph([helper.make_node("Identity", ["a"], ["e"])], "else", [], [tensor("e", None)])
    model = make_model(
        [
            helper.make_node("Reshape", ["x", "shape"], ["a"], name="first"),
            helper.make_node("Size", ["shape"], ["n"], name="size"),
            helper.make_node("Equal", ["n", "one"], ["flat"], name="flat"),
            helper.make_node("If", ["flat"], ["y"], name="if", then_branch=then, else_branch=other),
        ],
        [tensor("x", [6]), tensor("shape", ["n"], TensorProto.INT64)],
        [tensor("y", None)],
        [weight("one", 1, np.int64), weight("zero", [0], np.int64)],
    )
    program, arrays = program_of(model), {"x": np.arange(6, dtype=np.float32), "shape": np.array([2, 3])}
    types = observe(program.model, arrays) | {"a": Type(ir.DataType.FLOAT, (2, 3))}
    piece = extract(program.model, ["if"], inputs=["a", "flat"], outputs=["y"], name="piece", types=types)
    shape = piece.graph.inputs[0].shape
    assert shape == (None if told is None else ir.Shape(told))
    given = {"a": arrays["x"].reshape(2, 3), "flat": np.array(False)}
    np.testing.assert_array_equal(run_whole(piece, given)["y"], given["a"])
