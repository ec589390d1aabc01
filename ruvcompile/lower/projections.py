"""Projections: a bias inside the matrix product, and several products of one input as one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ruvcompile.lower.edit import Edit, integer
from ruvcompile.passes.edit import made_by, replace_value

# What follows the input of a ``MatMulNBits``: weights, scales, zero points, an order of rows (never used), bias.
OPERANDS = ("linear", "scales", "zeros", "order", "bias")
_BIAS = 5
_ALIKE = ("K", "bits", "block_size", "accuracy_level")


def bias_inside(edit: Edit, node: ir.Node) -> None:
    """``Add`` of a weight to a ``MatMulNBits`` -> the product's own bias."""
    product, bias = made_by(node.inputs[0], "MatMulNBits"), node.inputs[1]
    if product is None or bias is None or not bias.is_initializer() or len(product.inputs) >= _BIAS + 1:
        return
    missing: list[ir.Value | None] = [None] * (_BIAS - len(product.inputs))
    attributes = {key: integer(product, key) for key in (*_ALIKE, "N")}
    inputs = [*product.inputs, *missing, bias]
    (whole,) = edit.add(product, "MatMulNBits", inputs, ["biased"], name=str(product.name), attributes=attributes)
    replace_value(node.outputs[0], whole)
    edit.remove(node, product)


def stack(edit: Edit, nodes: Sequence[ir.Node | None], name: str, before: ir.Node) -> ir.Value | None:
    """One ``MatMulNBits`` in place of several of the same input, bits and block; None where they are not alike."""
    first = nodes[0]
    if first is None or any(node is None or not _alike(first, node) for node in nodes):
        return None
    parts = [node for node in nodes if node is not None]
    path = name.lstrip("/").replace("/", ".")
    operands = [first.inputs[0]]
    for suffix, column in zip(OPERANDS, zip(*(node.inputs[1:] for node in parts), strict=True), strict=False):
        operands.append(_concatenate(edit.graph, f"{path}.{suffix}", column) if column[0] is not None else None)
    sizes = {key: integer(first, key) for key in _ALIKE} | {"N": sum(integer(node, "N") for node in parts)}
    (out,) = edit.add(before, "MatMulNBits", operands, [name.lstrip("/")], name=name, attributes=sizes)
    return out


def stack_alike(edit: Edit) -> None:
    """Products of one input -> one product, whose output is divided: queries, keys and values; gate and up.

    Each product quantises its input, and has a cost besides the weights it reads.
    """
    readers: dict[str, list[ir.Node]] = {}
    for node in edit.graph:
        if node.op_type == "MatMulNBits":
            readers.setdefault(str(node.inputs[0].name), []).append(node)  # type: ignore[union-attr]  # it has one
    for nodes in readers.values():
        path = str(nodes[0].name).rpartition("/")[0]
        each = [str(node.name).rpartition("/")[2].removesuffix("_proj") for node in nodes]
        kinds = ("" if max(map(len, each)) == 1 else "_").join(each)  # qkv, gate_up
        stacked = stack(edit, nodes, f"{path}/{kinds}_proj", before=nodes[0]) if len(nodes) > 1 else None
        if stacked is None:
            continue
        names = [f"{node.outputs[0].name}.part" for node in nodes]
        widths = [integer(node, "N") for node in nodes]
        parts = edit.split(nodes[0], stacked, widths, names, name=f"{path}/{kinds}_split", kind=kinds)
        for node, part in zip(nodes, parts, strict=True):
            replace_value(node.outputs[0], part)
        edit.remove(*nodes)


def _alike(first: ir.Node, other: ir.Node) -> bool:
    return (
        other.inputs[0] is first.inputs[0]
        and [value is None for value in other.inputs] == [value is None for value in first.inputs]
        and all(integer(other, key) == integer(first, key) for key in _ALIKE)
    )


def _concatenate(graph: ir.Graph, name: str, values: Sequence[ir.Value | None]) -> ir.Value:
    """The lazy concatenation of initializers along their first axis."""
    tensors = [value.const_value for value in values if value is not None]
    shapes = [tuple(int(size) for size in tensor.shape) for tensor in tensors if tensor is not None]  # type: ignore[arg-type]  # static
    shape = ir.Shape((sum(each[0] for each in shapes), *shapes[0][1:]))
    dtype = tensors[0].dtype  # type: ignore[union-attr]  # as above

    def read() -> ir.TensorProtocol:
        return ir.Tensor(np.concatenate([tensor.numpy() for tensor in tensors if tensor is not None]), name=name)

    value = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))
    value.const_value = ir.LazyTensor(read, dtype=dtype, shape=shape, name=name)
    graph.register_initializer(value)
    return value
