"""Norms, linear layers and reshapes of an exported graph, each as the one node that it is.

1. ``SimplifiedLayerNormalization`` is ``RMSNormalization``; ``SkipSimplifiedLayerNormalization`` has an ``Add`` before.
2. ``x * (1 / sqrt(mean(x ** 2) + e)) * w``, with casts to the type that it already has, is ``RMSNormalization``.
3. A ``Cast`` of float32 to float32 is nothing, nor is an ``Identity``, by which exporters let equal weights be one.
4. A ``Reshape`` that changes no shape is nothing, and one that keeps batch and sequence says so with zeros.
5. ``Reshape`` to rows, ``Gemm``, ``Reshape`` back is ``MatMul`` and ``Add`` on the activation as it was.
6. The ``Transpose`` of a weight is a weight; of the embedding, one that is tied to it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import add_node, drop_unread, numbers, pair_of, scalar
from ruvcompile.load.decoder_onnx.runs import Dims
from ruvcompile.passes.edit import constant, made_by, replace_value
from ruvcompile.passes.scope import is_weight
from ruvcompile.program import TIED


def plain_norms(graph: ir.Graph, floats: Collection[str]) -> None:
    """Rules 1 to 3, in place; ``floats`` are the values around ``Cast`` nodes that are float32."""
    for node in list(graph):
        if node.op_type == "Identity" and node.inputs[0] is not None and not node.outputs[0].is_graph_output():
            ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
        elif node.op_type == "Cast" and node.attributes["to"].as_int() == ir.DataType.FLOAT:
            source = node.inputs[0]
            if source is not None and source.name in floats and not node.outputs[0].is_graph_output():
                ir.convenience.replace_all_uses_with(node.outputs[0], source)
        elif node.op_type == "SimplifiedLayerNormalization":
            _norm(graph, node, node.inputs[0], node.inputs[1], _epsilon(node))
        elif node.op_type == "SkipSimplifiedLayerNormalization" and len(node.inputs) <= 3:
            total = add_node(graph, node, "Add", node.inputs[:2], f"{node.name}/add")
            if len(node.outputs) > 3:
                replace_value(node.outputs[3], total.outputs[0])
            _norm(graph, node, total.outputs[0], node.inputs[2], _epsilon(node))
    for node in list(graph):
        if node.op_type == "Mul":
            _spelt_out(graph, node)
    drop_unread(graph)


def turned_weights(graph: ir.Graph) -> None:
    """Rule 6, in place."""
    for node in list(graph):
        weight = node.inputs[0] if node.op_type == "Transpose" else None
        if weight is None or not is_weight(weight) or weight.shape is None or len(weight.shape) != 2:
            continue
        tensor, name = weight.const_value, f"{weight.name}/turned"
        assert tensor is not None
        shape = ir.Shape(tuple(reversed(tensor.shape.numpy())))
        read = partial(_turned, tensor, name)
        value = ir.Value(name=name, shape=shape, type=ir.TensorType(tensor.dtype))
        value.const_value = ir.LazyTensor(read, dtype=tensor.dtype, shape=shape, name=name)
        if any(use.node.op_type == "Gather" for use in weight.uses()):
            value.metadata_props[TIED] = str(weight.name)
        graph.register_initializer(value)
        ir.convenience.replace_all_uses_with(node.outputs[0], value)
    drop_unread(graph)


def _turned(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    return ir.Tensor(np.ascontiguousarray(tensor.numpy().T), name=name)


def _epsilon(node: ir.Node) -> float:
    return node.attributes["epsilon"].as_float() if "epsilon" in node.attributes else 1e-5


def _norm(graph: ir.Graph, node: ir.Node, source: ir.Value | None, scale: ir.Value | None, epsilon: float) -> None:
    attributes = {"axis": -1, "epsilon": epsilon, "stash_type": 1}
    made = add_node(graph, node, "RMSNormalization", [source, scale], f"{node.name}/rms", attributes)
    replace_value(node.outputs[0], made.outputs[0])


def _spelt_out(graph: ir.Graph, node: ir.Node) -> None:
    """Rule 2; ``node`` is the product with the weight."""
    for scale, normed in pair_of(node):
        if not is_weight(scale) or scale.shape is None or len(scale.shape) != 1:
            continue
        product = made_by(normed, "Mul")
        if product is None:
            continue
        for source, factor in pair_of(product):
            epsilon = _inverse_root(factor, source)
            if epsilon is not None:
                _norm(graph, node, source, scale, epsilon)
                return


def _inverse_root(factor: ir.Value, source: ir.Value) -> float | None:
    """The epsilon where ``factor`` is ``1 / sqrt(mean(source ** 2) + epsilon)``."""
    if (division := made_by(factor, "Div")) is not None and scalar(division.inputs[0]) == 1:
        root = made_by(division.inputs[1], "Sqrt")
    elif (inverse := made_by(factor, "Reciprocal")) is not None:
        root = made_by(inverse.inputs[0], "Sqrt")
    else:
        return None
    total = made_by(root.inputs[0], "Add") if root is not None else None
    if total is None:
        return None
    for mean, epsilon in pair_of(total):
        reduced = made_by(mean, "ReduceMean")
        power = made_by(reduced.inputs[0], "Pow", "Mul") if reduced is not None and _over_last(reduced) else None
        if power is None or power.inputs[0] is not source:
            continue
        squared = power.inputs[1] is source if power.op_type == "Mul" else scalar(power.inputs[1]) == 2
        if squared and scalar(epsilon) is not None:
            return scalar(epsilon)
    return None


def _over_last(node: ir.Node) -> bool:
    """Whether a reduction is over the last axis; before opset 18 its axes are an attribute."""
    if "axes" in node.attributes:
        return tuple(node.attributes["axes"].as_ints()) == (-1,)
    return len(node.inputs) > 1 and numbers(node.inputs[1]) == [-1]


def plain_reshapes(graph: ir.Graph, dims: Mapping[str, Dims]) -> None:
    """Rule 4, in place; ``dims`` tell the shapes that are known."""
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Reshape" else None
        if source is None or node.outputs[0].is_graph_output():
            continue
        before, after = dims.get(str(source.name)), dims.get(str(node.outputs[0].name))
        if before is not None and before == after:
            ir.convenience.replace_all_uses_with(node.outputs[0], source)
        elif before is not None and after is not None and before[:2] == after[:2] == ("batch", "sequence"):
            rest = [each for each in after[2:] if isinstance(each, int)]
            if len(rest) == len(after) - 2:
                shape = [0, 0, *rest]
                wanted = constant(graph, f"keep/{'x'.join(map(str, rest))}", np.array(shape, np.int64))
                node.replace_input_with(1, wanted)
                node.attributes.pop("allowzero", None)
    drop_unread(graph)


def plain_linear(graph: ir.Graph, dims: Mapping[str, Dims]) -> None:
    """Rule 5, in place."""
    for node in list(graph):
        if node.op_type == "Gemm":
            _linear(graph, node, dims)
    drop_unread(graph)


def _linear(graph: ir.Graph, node: ir.Node, dims: Mapping[str, Dims]) -> None:
    """Rule 5."""
    rows, back = made_by(node.inputs[0], "Reshape"), [use.node for use in node.outputs[0].uses()]
    plain = all(node.attributes[key].as_float() == 1 for key in ("alpha", "beta") if key in node.attributes)
    turned = [bool(node.attributes[key].as_int()) if key in node.attributes else False for key in ("transA", "transB")]
    weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
    if rows is None or len(back) != 1 or back[0].op_type != "Reshape" or not plain or any(turned):
        return
    source = rows.inputs[0]
    assert source is not None
    before, after = dims.get(str(source.name)), dims.get(str(back[0].outputs[0].name))
    if before is None or after is None or before[:-1] != after[:-1] or len(after) != 3:
        return
    made = add_node(graph, node, "MatMul", [source, weight], f"{node.name}/linear").outputs[0]
    if bias is not None:
        made = add_node(graph, node, "Add", [made, bias], f"{node.name}/biased").outputs[0]
    replace_value(back[0].outputs[0], made)


__all__ = ["plain_linear", "plain_norms", "plain_reshapes", "turned_weights"]
