"""One small model for every kind of thing that a foreign graph may hold."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.graphs import make_model, tensor, weight

F, I64, B, S = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING
X = np.random.default_rng(0).standard_normal((3, 4)).astype(np.float32)
Model = tuple[onnx.ModelProto, Mapping[str, object]]


def n(op: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node; ``-`` stands for an input that is left out."""
    given = ["" if each == "-" else each for each in inputs.split()]
    return helper.make_node(op, given, outputs.split(), **attributes)


def body(nodes: list[onnx.NodeProto], inputs: list[onnx.ValueInfoProto], outputs: list[str]) -> onnx.GraphProto:
    return helper.make_graph(
        nodes, "body", inputs, [helper.make_value_info(each, helper.TypeProto()) for each in outputs]
    )


def branches_with_captures() -> Model:
    """What a branch reads from outside it, from three scopes out, and from a stage before."""
    inner = body([n("Add", "a w", "t1"), n("Mul", "t1 r", "then")], [], ["then"])
    deep = n("If", "flag", "deep", then_branch=body([n("Sub", "r a", "e1")], [], ["e1"]), else_branch=inner)
    outer = body([n("Neg", "r", "minus"), deep, n("Add", "deep minus", "else")], [], ["else"])
    simple = body([n("Exp", "r", "then")], [], ["then"])
    nodes = [n("Relu", "x", "a"), n("Abs", "a", "r"), n("Not", "given", "flag"), n("Sin", "r", "s")]
    nodes += [n("If", "given", "i", then_branch=simple, else_branch=outer), n("Add", "i s", "y")]
    inputs = [tensor("x", [3, "n"]), tensor("given", [], B)]
    return make_model(nodes, inputs, [tensor("y", None)], [weight("w", X)]), {"x": X, "given": np.array(False)}


def loops_that_name_alike() -> Model:
    """Two loops with the same inner names, captured values and scan outputs."""

    def loop(captured: str, made: str) -> onnx.NodeProto:
        ports = [tensor("i", [], I64), tensor("go", [], B), tensor("state", [3, 4])]
        inner = [n("Add", f"state {captured}", "next"), n("Identity", "go", "on"), n("ReduceSum", "next", "total")]
        return n("Loop", "trips - a", f"{made} {made}s", body=body(inner, ports, ["on", "next", "total"]))

    nodes = [n("Relu", "x", "a"), loop("a", "p"), n("Neg", "p", "q"), loop("q", "s"), n("Add", "s q", "y")]
    outputs = [tensor("y", None), tensor("ps", None), tensor("ss", None)]
    return make_model(nodes, [tensor("x", [3, 4])], outputs, [weight("trips", 3, np.int64)]), {"x": X}


def a_scan() -> Model:
    inner = [n("Add", "sum item", "next"), n("Mul", "next scale", "out")]
    ports = [tensor("sum", [4]), tensor("item", [4])]
    nodes = [n("Exp", "x", "e"), n("ReduceMax", "e", "scale", keepdims=0), n("Sqrt", "e", "r")]
    nodes += [n("Scan", "zero r", "last all", body=body(inner, ports, ["next", "out"]), num_scan_inputs=1)]
    nodes += [n("Sub", "all last", "y")]
    return make_model(nodes, [tensor("x", [3, 4])], [tensor("y", None)], [weight("zero", np.zeros(4))]), {"x": X}


def functions() -> Model:
    """One that is called only in a branch of another, two overloads of one name, and a weight in each's reader."""
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]

    def function(name: str, nodes: list[onnx.NodeProto], overload: str = "") -> onnx.FunctionProto:
        return helper.make_function("mine", name, ["p", "q"], ["o"], nodes, imports, overload=overload)

    then = body([n("twice", "p q", "t", domain="mine")], [], ["t"])
    other = body([n("Sub", "p q", "f")], [], ["f"])
    made = [
        function("twice", [n("Add", "p p", "d"), n("Add", "d q", "o")]),
        function("chosen", [n("ReduceSum", "q", "s", keepdims=0), n("Cast", "s", "c", to=B),
                            n("If", "c", "o", then_branch=then, else_branch=other)]),
        function("two", [n("Mul", "p q", "o")], "product"),
        function("two", [n("Add", "p q", "o")], "sum"),
    ]  # fmt: skip
    nodes = [n("Abs", "x", "a"), n("chosen", "a w", "b", domain="mine"), n("two", "b a", "c", domain="mine")]
    nodes += [n("two", "c w", "d", domain="mine"), n("Neg", "d", "y")]
    nodes[2].overload, nodes[3].overload = "product", "sum"
    model = make_model(
        nodes, [tensor("x", [3, 4])], [tensor("y", None)], [weight("w", X)], domains={"mine": 1}, functions=made
    )
    return model, {"x": X}


def texts() -> Model:
    nodes = [n("Cast", "x", "s", to=S), n("StringConcat", "s t", "c"), n("StringConcat", "c name", "d")]
    nodes += [n("Identity", "d", "y"), n("Equal", "d other", "e")]
    words = onnx.helper.make_tensor("t", S, [1], [b" and "])
    inputs = [tensor("x", [2], I64), tensor("name", ["n"], S), tensor("other", [2], S)]
    model = make_model(nodes, inputs, [tensor("y", None, S), tensor("e", None, B)], [words], opset=20)
    texts = np.array(["\u00e9t\u00e9", ""], object), np.array(["4 and \u00e9t\u00e9", "x"], object)
    return model, {"x": np.array([4, 5]), "name": texts[0], "other": texts[1]}


def sequences_inside() -> Model:
    nodes = [n("Exp", "x", "e"), n("SplitToSequence", "e parts", "s", axis=0), n("SequenceAt", "s one", "t")]
    nodes += [n("ConcatFromSequence", "s", "c", axis=1), n("Add", "c t", "d"), n("Neg", "d", "y")]
    weights = [weight("parts", 1, np.int64), weight("one", 1, np.int64)]
    return make_model(nodes, [tensor("x", [3, 1])], [tensor("y", None)], weights), {"x": X[:, :1]}


def optionals_inside() -> Model:
    nodes = [n("Exp", "x", "e"), n("Optional", "e", "o"), n("OptionalGetElement", "o", "g"), n("Neg", "g", "m")]
    nodes += [n("Clip", "m - top", "y")]
    return make_model(nodes, [tensor("x", [3, 4])], [tensor("y", None)], [weight("top", -1)]), {"x": X}


def outputs_that_are_no_results() -> Model:
    """An input, a weight, and a value that is read on, each an output; a node whose second output nobody reads."""
    nodes = [n("Relu", "x", "a"), n("TopK", "a k", "v i"), n("Neg", "v", "y")]
    outputs = [tensor("y", None), tensor("x", [3, 4]), tensor("w", [3, 4]), tensor("v", None)]
    return make_model(nodes, [tensor("x", [3, 4])], outputs, [weight("w", X), weight("k", [2], np.int64)]), {"x": X}


def contrib() -> Model:
    """Types that shape inference does not know."""
    nodes = [
        n("FusedMatMul", "x w", "a", domain="com.microsoft", transB=1),
        n("Gelu", "a", "b", domain="com.microsoft"),
    ]
    nodes += [n("BiasGelu", "b c", "d", domain="com.microsoft"), n("Neg", "d", "y")]
    weights = [weight("w", X), weight("c", np.ones(3))]
    return make_model(nodes, [tensor("x", ["n", 4])], [tensor("y", None)], weights, domains={"com.microsoft": 1}), {
        "x": X
    }


def quantised() -> Model:
    """Dynamically quantised, an integer product, and a product of quantised tensors."""
    random = np.random.default_rng(1)
    nodes = [n("DynamicQuantizeLinear", "x", "q s z"), n("MatMulInteger", "q w z", "p"), n("Cast", "p", "f", to=F)]
    nodes += [
        n("Mul", "f s", "g"),
        n("QuantizeLinear", "g gs gz", "h"),
        n("QLinearMatMul", "h gs gz v gs gz gs gz", "r"),
    ]
    nodes += [n("DequantizeLinear", "r gs gz", "y")]
    weights = [
        weight("w", random.integers(-9, 9, (4, 5)), np.int8),
        weight("v", random.integers(0, 9, (5, 2)), np.uint8),
    ]
    weights += [weight("gs", 0.5), weight("gz", 3, np.uint8)]
    return make_model(nodes, [tensor("x", [3, 4])], [tensor("y", None)], weights), {"x": X}


def small_floats() -> Model:
    """bfloat16, float8 and int4 across cuts, and in and out of the graph."""
    bf, f8, i4 = TensorProto.BFLOAT16, TensorProto.FLOAT8E4M3FN, TensorProto.INT4
    nodes = [
        n("Cast", "b", "x", to=F),
        n("Cast", "x", "e", to=f8),
        n("Cast", "e", "f", to=F),
        n("Cast", "f", "i", to=i4),
    ]
    nodes += [n("Cast", "i", "g", to=F), n("Cast", "g", "out", to=bf)]
    model = make_model(nodes, [tensor("b", ["n", 4], bf)], [tensor("out", None, bf), tensor("i", None, i4)], opset=21)
    return model, {"b": X.astype(ml_dtypes.bfloat16)}


def old() -> Model:
    """Opset 7: attributes that have since become inputs, a type that has since been refused."""
    nodes = [
        n("Conv", "x w", "a"),
        n("BatchNormalization", "a s b m v", "c"),
        n("Upsample", "c", "d", scales=[1.0, 1, 2, 2]),
    ]
    nodes += [
        n("Dropout", "d", "e", ratio=0.5),
        n("Reshape", "e shape", "f"),
        n("Softmax", "f", "g"),
        n("TopK", "g", "y i", k=2),
    ]
    weights = [
        weight("w", np.ones((2, 1, 1, 1))),
        *(weight(each, [1, 2]) for each in "sbmv"),
        weight("shape", [2, -1], np.int64),
    ]
    model = make_model(
        nodes, [tensor("x", [1, 1, 3, 4])], [tensor("y", None), tensor("i", None, I64)], weights, opset=7
    )
    model.ir_version = 3
    model.graph.input.extend(tensor(each.name, each.dims, each.data_type) for each in weights)
    return model, {"x": X.reshape(1, 1, 3, 4)}


def nothing_in_them() -> Model:
    """Tensors of no elements, and of no axes."""
    nodes = [n("Shape", "x", "s"), n("ReduceSum", "x", "t", keepdims=0), n("NonZero", "x", "z"), n("Size", "z", "c")]
    nodes += [n("Transpose", "z", "u"), n("Concat", "u u", "y", axis=0)]
    return make_model(
        nodes,
        [tensor("x", ["n", 4])],
        [tensor(each, None, t) for each, t in (("y", I64), ("t", F), ("c", I64), ("s", I64))],
    ), {"x": np.zeros((0, 4), np.float32)}


def trees() -> Model:
    """An operator of ai.onnx.ml between others."""
    nodes = [n("Scaler", "x", "a", domain="ai.onnx.ml", offset=[0.5], scale=[2.0]), n("Neg", "a", "b")]
    nodes += [n("LinearRegressor", "b", "c", domain="ai.onnx.ml", coefficients=[1.0, 2, 3, 4], intercepts=[0.5])]
    nodes += [n("Binarizer", "c", "y", domain="ai.onnx.ml", threshold=0.1)]
    return make_model(nodes, [tensor("x", ["n", 4])], [tensor("y", None)], domains={"ai.onnx.ml": 3}), {"x": X}


def half_floats() -> Model:
    """Attention and a network between norms, which have kernels for half floats where products have none."""
    random = np.random.default_rng(0)
    sizes = {"q": 32, "k": 32, "v": 32, "o": 32, "u": 128, "w": 32}
    rows = {name: 128 if name == "w" else 32 for name in sizes}
    weights = [weight(name, random.standard_normal((rows[name], size)) / 5, np.float16) for name, size in sizes.items()]
    weights += [weight("s", random.standard_normal(32), np.float16), weight("fifth", 0.2, np.float16)]
    nodes = [
        n("LayerNormalization", "x s s", "n"),
        n("MatMul", "n q", "Q"),
        n("MatMul", "n k", "K"),
        n("MatMul", "n v", "V"),
    ]
    nodes += [
        n("Transpose", "K", "T", perm=[0, 2, 1]),
        n("MatMul", "Q T", "S"),
        n("Mul", "S fifth", "M"),
        n("Softmax", "M", "P"),
    ]
    nodes += [
        n("MatMul", "P V", "A"),
        n("MatMul", "A o", "O"),
        n("Add", "x O", "R"),
        n("LayerNormalization", "R s s", "N"),
    ]
    nodes += [n("MatMul", "N u", "U"), n("Gelu", "U", "G"), n("MatMul", "G w", "D"), n("Add", "R D", "Y")]
    nodes += [n("LayerNormalization", "Y s s", "F"), n("Cast", "F", "y", to=F)]
    model = make_model(nodes, [tensor("x", [1, "n", 32], TensorProto.FLOAT16)], [tensor("y", None)], weights, opset=20)
    return model, {"x": random.standard_normal((1, 7, 32)).astype(np.float16)}


def sparse() -> Model:
    """A weight and a constant, with linear and with coordinate indices."""

    def made(name: str, indices: object) -> onnx.SparseTensorProto:
        return helper.make_sparse_tensor(weight(name, [1, 2]), weight(f"{name}/at", indices, np.int64), [4, 4])

    nodes = [
        n("Relu", "x", "a"),
        n("MatMul", "a w", "b"),
        helper.make_node("Constant", [], ["c"], sparse_value=made("", [1, 6])),
    ]
    nodes += [n("MatMul", "b c", "d"), n("Neg", "d", "y")]
    model = make_model(nodes, [tensor("x", [3, 4])], [tensor("y", None)])
    model.graph.sparse_initializer.append(made("w", [[0, 3], [2, 2]]))
    return model, {"x": X}


def many_texts() -> Model:
    """More texts in a weight than stay inside a graph's file as numbers."""
    words = helper.make_tensor("labels", S, [3000], [f"label {number}".encode() for number in range(3000)])
    nodes = [n("ArgMax", "x", "i", keepdims=0), n("Mul", "i k", "j"), n("Gather", "labels j", "l")]
    nodes += [n("StringConcat", "l l", "y")]
    weights = [words, weight("k", [700], np.int64)]
    return make_model(nodes, [tensor("x", ["n", 4])], [tensor("y", None, S)], weights, opset=20), {"x": X}


def rare_weights() -> Model:
    """Weights of 4 bits and of bfloat16, in files of their own."""
    random = np.random.default_rng(0)
    weights = [onnx.numpy_helper.from_array(random.integers(-8, 8, (64, 64)).astype(ml_dtypes.int4), "w")]
    weights += [onnx.numpy_helper.from_array(random.standard_normal((64, 64)).astype(ml_dtypes.bfloat16), "b")]
    nodes = [
        n("DequantizeLinear", "w s", "d"),
        n("MatMul", "x d", "a"),
        n("Cast", "b", "f", to=F),
        n("MatMul", "a f", "c"),
    ]
    nodes += [n("Neg", "c", "y")]
    weights.append(weight("s", 0.1))
    return make_model(nodes, [tensor("x", ["n", 64])], [tensor("y", None)], weights, opset=21), {
        "x": np.ones((2, 64), np.float32)
    }


def odd_names() -> Model:
    """Names that mean something in files of ours, an input that nobody reads."""
    nodes = [n("Relu", "in.x[0]", "out.a[]", name=".npy"), n("Add", "out.a[] file", "like./../q", name="../x")]
    nodes += [n("Neg", "like./../q", "\u00e9\u00fc.npy", name="other")]
    inputs = [tensor("in.x[0]", ["batch size", 4]), tensor("file", ["batch size", 4]), tensor("u", [2], S)]
    arrays = {"in.x[0]": X, "file": X, "u": np.array(["a", "b"], object)}
    return make_model(nodes, inputs, [tensor("\u00e9\u00fc.npy", None), tensor("out.a[]", None)]), arrays


def weights_in_branches() -> Model:
    """A large weight of a branch's own, and one that it reads from outside."""
    then = helper.make_graph(
        [n("MatMul", "a own", "t")], "then", [], [tensor("t", None)], [weight("own", np.ones((40, 40)))]
    )
    other = helper.make_graph([n("MatMul", "a w", "e")], "else", [], [tensor("e", None)])
    nodes = [n("Relu", "x", "a"), n("ReduceSum", "a", "s", keepdims=0), n("Cast", "s", "f", to=B)]
    nodes += [n("If", "f", "i", then_branch=then, else_branch=other), n("Neg", "i", "y")]
    weights = [weight("w", np.ones((40, 40)))]
    return make_model(nodes, [tensor("x", ["n", 40])], [tensor("y", None)], weights), {
        "x": np.ones((2, 40), np.float32)
    }


def a_sequence_of_texts_comes_out() -> Model:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(S, None))
    nodes = [
        n("Cast", "x", "t", to=S),
        n("SplitToSequence", "t p", "s", axis=0),
        n("Neg", "x", "z"),
        n("Exp", "z", "e"),
    ]
    outputs = [helper.make_value_info("s", kind), tensor("e", None)]
    return make_model(nodes, [tensor("x", [3, 1])], outputs, [weight("p", 1, np.int64)]), {"x": X[:, :1]}


def an_optional_goes_in() -> Model:
    port = helper.make_value_info("o", helper.make_optional_type_proto(helper.make_tensor_type_proto(F, ["n"])))
    nodes = [n("OptionalGetElement", "o", "g"), n("Add", "g x", "a"), n("Neg", "a", "y")]
    return make_model(nodes, [port, tensor("x", ["n"])], [tensor("y", None)]), {"o": X[0], "x": X[1]}
