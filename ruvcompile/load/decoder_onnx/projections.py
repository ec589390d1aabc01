"""One projection that yields query, key and value side by side, as three: its weight's columns are divided.

Every column of a linear layer is computed for itself, so three layers of some of the columns each give the same numbers
as one of all. Quantised weights are divided as they are: blocks lie along the rows that are kept together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import add_node, pair_of
from ruvcompile.passes.edit import constant, made_by
from ruvcompile.passes.quantise import MS_DOMAIN
from ruvcompile.passes.scope import is_weight
from ruvrun.executors import Array

_PARTS = ("q", "k", "v")


def unpacked(
    graph: ir.Graph, packed: ir.Value, widths: Sequence[int], before: ir.Node
) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Three values of ``widths`` that lie side by side in ``packed``."""
    bias, product = _biased(packed)
    linear = made_by(product, "MatMul", "MatMulNBits")
    spans = list(pairwise([0, *accumulate(widths)]))
    if linear is None or not all(each is None or is_weight(each) for each in linear.inputs[1:]):
        sizes = constant(graph, f"widths/{'x'.join(map(str, widths))}", np.array(widths, np.int64))
        name = f"{packed.name}/split"
        node = add_node(graph, before, "Split", [packed, sizes], name, {"axis": -1}, outputs=3)
        return tuple(node.outputs)  # type: ignore[return-value]  # three of them
    made = []
    for part, (start, stop) in zip(_PARTS, spans, strict=True):
        name = f"{linear.name}/{part}_proj"
        value = _part(graph, linear, start, stop, name, before)
        if bias is not None:
            half = _columns(graph, bias, start, stop, f"{bias.name}/{part}", axis=0)
            value = add_node(graph, before, "Add", [value, half], f"{name}/biased").outputs[0]
        made.append(value)
    return tuple(made)  # type: ignore[return-value]  # three of them


def _biased(value: ir.Value) -> tuple[ir.Value | None, ir.Value]:
    add = made_by(value, "Add")
    if add is not None:
        for bias, product in pair_of(add):
            if is_weight(bias) and bias.shape is not None and len(bias.shape) == 1:
                return bias, product
    return None, value


def _part(graph: ir.Graph, linear: ir.Node, start: int, stop: int, name: str, before: ir.Node) -> ir.Value:
    weights = linear.inputs[1:]
    if linear.op_type == "MatMul":
        assert weights[0] is not None
        weight = _columns(graph, weights[0], start, stop, f"{name}/weight", axis=1)
        return add_node(graph, before, "MatMul", [linear.inputs[0], weight], name).outputs[0]
    attributes = {key: attribute.as_int() for key, attribute in linear.attributes.items()}
    rows = attributes["N"]
    parts = [
        None if each is None else _columns(graph, each, start, stop, f"{name}/{number}", axis=0, rows=rows)
        for number, each in enumerate(weights)
    ]
    attributes["N"] = stop - start
    return add_node(
        graph, before, "MatMulNBits", [linear.inputs[0], *parts], name, attributes, domain=MS_DOMAIN
    ).outputs[0]


def _columns(
    graph: ir.Graph, weight: ir.Value, start: int, stop: int, name: str, *, axis: int, rows: int = 0
) -> ir.Value:
    """An initializer of some rows or columns of another; ``rows`` is how many a flat one has."""
    tensor = weight.const_value
    assert tensor is not None
    shape = [int(size) for size in tensor.shape]  # type: ignore[arg-type]  # weights have static shapes
    flat = bool(rows) and shape[0] != rows
    if flat:
        shape = [rows, tensor.size // rows]
    found = [*shape]
    found[axis] = stop - start

    def read() -> ir.TensorProtocol:
        array: Array = tensor.numpy().reshape(shape)
        part = array[start:stop] if axis == 0 else array[:, start:stop]
        return ir.Tensor(np.ascontiguousarray(part), name=name)

    value = ir.Value(name=name, shape=ir.Shape(found), type=ir.TensorType(tensor.dtype))
    value.const_value = ir.LazyTensor(read, dtype=tensor.dtype, shape=ir.Shape(found), name=name)
    graph.register_initializer(value)
    return value
