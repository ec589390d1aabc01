"""From a plan and its program to what the report shows beyond the JSON of the plan: units, cuts, links, forecast."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import onnx_ir as ir

from ruvcompile.passes.infer import Type, spelt
from ruvcompile.passes.pieces import unit_of
from ruvcompile.plan import Plan
from ruvcompile.program import Piece, Program
from ruvcompile.report.contents import Crossing, Cut, UnitPlace


def gather(program: Program, types: Mapping[str, Type], plan: Plan) -> dict[str, Any]:
    """All of ``plan.json``: the figures of a plan, where its units went, what crosses the cuts, and its forecast.

    Args:
        program: what was planned.
        types: of a graph's tensors, as observed; of a decoder none.
        plan: whose units are in the order of its stages.
    """
    stage = {name: number for number, piece in enumerate(plan.pieces) for name in piece.nodes}
    ops = {str(node.name): node.op_type for node in program.model.graph}
    decoder = program.decoder is not None
    places = [
        UnitPlace(
            name=unit_of(unit.nodes[0]) if decoder else unit.nodes[0],
            key=key,
            stage=stage[unit.nodes[0]],
            ops=[] if decoder else [ops[name] for name in unit.nodes],
        )
        for unit, key in zip(plan.units, plan.keys, strict=True)
    ]
    more = {"units": places, "cuts": _cuts(program, types, plan.pieces), "forecast": plan.forecast}
    told: dict[str, Any] = msgspec.to_builtins(more)
    return {**plan.figures, **told}


def _cuts(program: Program, types: Mapping[str, Type], pieces: Sequence[Piece]) -> list[Cut]:
    graph = program.model.graph
    values = {str(value.name): value for value in (*graph.inputs, *(out for node in graph for out in node.outputs))}
    return [
        Cut(number, [_crossing(name, values[name], types) for name in piece.forward])
        for number, piece in enumerate(pieces[:-1])
    ]


def _crossing(name: str, value: ir.Value, types: Mapping[str, Type]) -> Crossing:
    """A tensor at a cut. Of a decoder, batch and sequence are one axis there, whose length is that of the step."""
    if name in types:
        seen = types[name]
        return Crossing(
            name,
            spelt(ir.TensorType(seen.dtype)),
            [extent if extent is not None else "any" for extent in seen.shape],
            seen.nbytes,
        )
    assert value.dtype is not None and value.shape is not None, "links carry only what has a type"
    known = [extent for extent in value.shape if isinstance(extent, int)]
    size = math.ceil(value.dtype.itemsize * math.prod(known))
    return Crossing(name, spelt(ir.TensorType(value.dtype)), ["tokens", *known], size)
