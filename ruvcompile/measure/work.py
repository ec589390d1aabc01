"""What a unit has to do, whatever the machine: operations, bytes it reads, nodes it consists of.

From this and a machine's figures follows what bounds the unit there (``scale``). Counted are the products, by their
definitions, and the values that go in and come out; per row, which is one token of a decoder, or one call.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ruvcompile.passes.infer import Type
from ruvcompile.passes.scope import all_nodes, is_weight
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program

_RECURRENT = frozenset({"LSTM", "GRU", "RNN"})
_CONVOLVED = frozenset({"Conv", "ConvInteger", "QLinearConv"})
_MULTIPLIED = frozenset({"MatMul", "Gemm", "MatMulInteger", "QLinearMatMul", "Einsum"})
_PRODUCTS = _RECURRENT | _CONVOLVED | _MULTIPLIED | {"MatMulNBits", "ConvTranspose"}


@dataclass(frozen=True)
class Work:
    """What one unit does.

    Attributes:
        nodes: it consists of, those in bodies included.
        operations: per row: a multiplication and an addition are two.
        weight_bytes: of the weights in its products, which are read once per step, whatever its rows.
        row_bytes: of the values it reads and makes, per row.
        depth_bytes: of keys and values, per row and token of context.
        bits: of its quantised weights; 0 for floats.
    """

    nodes: int
    operations: float = 0.0
    weight_bytes: int = 0
    row_bytes: int = 0
    depth_bytes: int = 0
    bits: int = 0


def works(
    program: Program, units: Sequence[Unit], keys: Sequence[str], types: Mapping[str, Type] | None = None
) -> dict[str, Work]:
    """The work of every unit, by key; equal keys are equal work.

    Args:
        types: a graph's, as observed; of a decoder the open dimensions are one row.
    """
    nodes = {str(node.name): node for node in program.model.graph}
    found: dict[str, Work] = {}
    for key, unit in zip(keys, units, strict=True):
        if key not in found:
            found[key] = _work(program, [nodes[name] for name in unit.nodes], unit, types or {})
    return found


def _work(program: Program, nodes: Sequence[ir.Node], unit: Unit, types: Mapping[str, Type]) -> Work:
    inner = list(all_nodes(nodes))
    products = [node for node in inner if node.op_type in _PRODUCTS]
    weights = {value for node in products for value in node.inputs if value is not None and is_weight(value)}
    graph = program.model.graph
    made = {str(value.name): value for node in nodes for value in node.outputs}
    taken = {str(value.name): value for node in nodes for value in node.inputs if value is not None}
    passing = [name for name in (*unit.inputs, *unit.outputs) if not name.startswith(("past_", "present_"))]
    past = [value for value in graph.inputs if str(value.name) in unit.inputs and str(value.name).startswith("past_")]
    return Work(
        nodes=len(inner),
        operations=sum(_operations(node, types) for node in products),
        weight_bytes=sum(value.const_value.nbytes for value in weights if value.const_value is not None),
        row_bytes=sum(_bytes(value, types) for name in passing if (value := made.get(name) or taken.get(name))),
        depth_bytes=sum(_bytes(value, types) for value in past),
        bits=max((_integer(node, "bits") for node in products if node.op_type == "MatMulNBits"), default=0),
    )


def _operations(node: ir.Node, types: Mapping[str, Type]) -> float:
    if node.op_type == "MatMulNBits":
        return 2.0 * _integer(node, "K") * _integer(node, "N")
    first = _shape(node.inputs[0], types)
    result = math.prod(_shape(node.outputs[0], types))
    if node.op_type in _MULTIPLIED:
        turned = node.op_type == "Gemm" and _integer(node, "transA")
        return 2.0 * result * (first[0 if turned else -1] if first else 1)
    weights = [shape for value in node.inputs[1:] if value is not None and len(shape := _shape(value, types)) > 1]
    if not weights:
        return 0.0
    if node.op_type in _RECURRENT:
        return 2.0 * math.prod(first[:2]) * sum(map(math.prod, weights[:2]))
    every = math.prod(first) if node.op_type == "ConvTranspose" else result
    return 2.0 * every * math.prod(weights[0][1:])


def _integer(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None else 0


def _shape(value: ir.Value | None, types: Mapping[str, Type]) -> list[int]:
    """Its dimensions; those that are open count as one."""
    if value is None:
        return []
    seen = types.get(str(value.name))
    dims = seen.shape if seen is not None else tuple(value.shape or ())
    return [dim if isinstance(dim, int) else 1 for dim in dims]


def _bytes(value: ir.Value, types: Mapping[str, Type]) -> int:
    seen = types.get(str(value.name))
    dtype = seen.dtype if seen is not None else value.dtype
    if dtype is None or dtype == ir.DataType.STRING:
        return 0
    return math.ceil(dtype.itemsize * math.prod(_shape(value, types)))
