"""Half floats cross a cut as whole ones, so that a cut changes nothing.

ONNX Runtime has no kernels for most operators on half floats on a CPU. It computes them in float32, and between two
such operators it leaves out the rounding to float16 that the graph asks for. A float16 tensor on a link would be
rounded, and the stages would not compute what the whole does: a thousandth apart is much for a sum of many. So the
maker casts what it sends to float32 and the reader casts it back. The back end removes these casts where it would have
left out the rounding inside one stage, and keeps them where it would have rounded.

Inputs and outputs of the whole graph keep their type; an output that is also read behind the cut is rounded there.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ruvcompile.passes.scope import all_nodes

_FREE = "InsertedPrecisionFreeCast_"
"""What ONNX Runtime calls the casts that it puts in itself: by the name it knows that nobody asked for the rounding."""

HALF, WHOLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


def widen(model: ir.Model, kept: Collection[str]) -> None:
    """Let the float16 ports of a stage's ``model`` be float32, those called as in ``kept`` excepted."""
    graph = model.graph
    entering = [value for value in graph.inputs if value.dtype == HALF and value.name not in kept]
    leaving = [value for value in graph.outputs if value.dtype == HALF and value.name not in kept]
    if not entering and not leaving:
        return
    taken = {each.name for node in all_nodes(graph) for each in (node, *node.outputs)}
    for value in entering:
        node = _cast(value, HALF, str(value.name), taken)
        value.replace_all_uses_with(node.outputs[0])
        node.replace_input_with(0, value)
        value.dtype = WHOLE
        graph.insert_before(graph[0], node)
    for value in leaving:
        node = _cast(value, WHOLE, str(value.name), taken)
        value.name, node.outputs[0].name = node.outputs[0].name, value.name
        graph.append(node)
        graph.outputs[graph.outputs.index(value)] = node.outputs[0]


def _cast(value: ir.Value, to: ir.DataType, name: str, taken: set[str | None]) -> ir.Node:
    """A Cast of ``value``; it and what it makes have a name of their own."""
    name = f"{name}/half"
    while name in taken or f"{_FREE}{name}" in taken:
        name += ".2"
    taken.update((name, f"{_FREE}{name}"))
    node = ir.node("Cast", [value], {"to": int(to)}, name=f"{_FREE}{name}")
    made = node.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(to), value.shape
    return node
