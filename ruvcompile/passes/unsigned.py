"""Write signed 8-bit activations as unsigned ones, so that a graph that was quantised may be cut between its kernels.

On x86 a quantised kernel takes unsigned activations and signed weights. ONNX Runtime therefore turns a pair
QuantizeLinear -> DequantizeLinear of type int8 into one of uint8 by itself; but it has to see the pair, and a tensor
that enters or leaves a stage is half of one: the kernels on both sides of the cut are lost. Quantising tools choose
int8 unless told otherwise, so without this pass most quantised graphs could not be cut anywhere.

Moving the zero point by 128 moves every number of the tensor by 128, the limits of saturation too, and so changes
nothing that comes out of the DequantizeLinear. It is done where

1. the tensor is made by a QuantizeLinear of the graph, with a constant int8 zero point;
2. it is no output of the graph, and all that read it are DequantizeLinear of the graph;
3. each of these has the same zero point, and a constant one too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ruvcompile.program import Program

_SHIFT = 128


def unsigned(program: Program) -> Program:
    """``program`` with its signed 8-bit activations unsigned; the given one is not changed."""
    if not any(_signed(node) for node in program.model.graph):
        return program
    model = program.model.clone()
    made: dict[ir.Value, ir.Value] = {}
    for node in model.graph:
        output = node.outputs[0]
        if not _signed(node) or output.is_graph_output():
            continue
        readers = [use.node for use in output.uses()]
        if not all(_takes_back(reader, node, use.idx) for reader, use in zip(readers, output.uses(), strict=True)):
            continue
        for each in (node, *readers):
            old = each.inputs[2]
            assert old is not None
            if old not in made:
                made[old] = _shifted(model.graph, old)
            each.replace_input_with(2, made[old])
        output.type = ir.TensorType(ir.DataType.UINT8)
        if "output_dtype" in node.attributes:
            node.attributes["output_dtype"] = ir.AttrInt64("output_dtype", ir.DataType.UINT8)
    _forget_unread(model.graph, made)
    return replace(program, model=model)


def _signed(node: ir.Node) -> bool:
    """Whether ``node`` quantises to int8 with a constant zero point."""
    return node.op_type == "QuantizeLinear" and _zero_point(node) is not None


def _zero_point(node: ir.Node) -> ir.TensorProtocol | None:
    """The constant int8 zero point of ``node``; None where it is another, or none."""
    value = node.inputs[2] if len(node.inputs) > 2 else None
    tensor = value.const_value if value is not None and value.is_initializer() else None
    return tensor if tensor is not None and tensor.dtype == ir.DataType.INT8 else None


def _takes_back(reader: ir.Node, node: ir.Node, place: int) -> bool:
    """Whether ``reader`` dequantises what ``node`` quantised, which is its input ``place``."""
    ours, theirs = _zero_point(node), _zero_point(reader)
    if reader.op_type != "DequantizeLinear" or reader.graph is not node.graph or place != 0:
        return False
    return ours is not None and theirs is not None and bool(np.array_equal(ours.numpy(), theirs.numpy()))


def _shifted(graph: ir.Graph, zero_point: ir.Value) -> ir.Value:
    """A new weight: ``zero_point`` for unsigned numbers."""
    assert zero_point.const_value is not None
    array = (zero_point.const_value.numpy().astype(np.int16) + _SHIFT).astype(np.uint8)
    name = f"{zero_point.name}/unsigned"
    while name in graph.initializers:
        name += "_"
    value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
    value.type, value.shape = ir.TensorType(ir.DataType.UINT8), ir.Shape(array.shape)
    graph.register_initializer(value)
    return value


def _forget_unread(graph: ir.Graph, values: Iterable[ir.Value]) -> None:
    for value in values:
        if not value.uses() and not value.is_graph_output():
            del graph.initializers[str(value.name)]
