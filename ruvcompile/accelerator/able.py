"""Which nodes an accelerator could take, by what its vendor says, and why not the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ruvcompile.passes.infer import Type
from ruvcompile.passes.scope import bodies, is_weight, reads
from ruvcompile.passes.units import Unit
from ruvcompile.targets import Accelerator

_WEIGHTED = {"Conv": 1, "ConvTranspose": 1, "Gemm": 1, "BatchNormalization": 1}
"""Operators whose input of this number has to be a weight."""


def refusals(model: ir.Model, units: Sequence[Unit], sizes: Mapping[str, Type], accelerator: Accelerator) -> list[str]:
    """For each unit of a frozen ``model`` why the accelerator does not take it; empty where it could.

    Args:
        sizes: the types of values, of those whose sizes follow from the inputs'.
    """
    nodes = {str(node.name): node for node in model.graph}
    return [
        next((why for name in unit.nodes if (why := _refusal(nodes[name], sizes, accelerator))), "") for unit in units
    ]


def worth(model: ir.Model, unit: Unit, accelerator: Accelerator) -> bool:
    """Whether a unit is what an accelerator is there for; a part of others is not worth the way to it."""
    names = set(unit.nodes)
    return any(node.name in names and node.op_type in accelerator.worth for node in model.graph)


def _refusal(node: ir.Node, sizes: Mapping[str, Type], accelerator: Accelerator) -> str:
    if node.domain not in ("", "ai.onnx") or node.op_type not in accelerator.operators:
        name = node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}.{node.op_type}"
        return f"{name} is not among its operators"
    if next(bodies(node), None) is not None:
        return f"{node.op_type} has a body"
    place = _WEIGHTED.get(node.op_type)
    if place is not None and (len(node.inputs) <= place or not _is_weight(node.inputs[place])):
        return f"{node.op_type} has weights that are computed"
    for value in (*reads(node), *node.outputs):
        if is_weight(value) or not value.name:
            continue
        kind = sizes.get(value.name)
        if kind is None:
            return f"{node.op_type} has a tensor whose size does not follow from the sizes of the inputs"
        if kind.dtype != ir.DataType.FLOAT:
            return f"{node.op_type} has a tensor of {kind.dtype.name.lower()}, and it takes floats of 32 bits"
    return ""


def _is_weight(value: ir.Value | None) -> bool:
    return value is not None and is_weight(value)
