"""Half floats cross a cut as whole ones, so that a cut changes nothing.

ONNX Runtime has no kernels for most operators on half floats on a CPU. It computes them in float32, and between two
such operators it leaves out the rounding to float16 that the graph asks for. A float16 tensor on a link would be
rounded, and the stages would not compute what the whole does: a thousandth apart is much for a sum of many. So the
maker casts what it sends to float32 and the reader casts it back. Two things make the back end treat these casts as
those that it puts in itself, which it removes where it would have left out the rounding:

1. They are called as it calls its own.
2. An operator that has a kernel for half floats (a norm) is computed in float32 all the same where all its
   neighbours are. Where the neighbour on the other side of the cut is of those, a ``Sum`` of one input stands for it:
   an operator without such a kernel that changes nothing.

Inputs and outputs of the whole graph keep their type; an output that is also read behind the cut is rounded there.
"""

from __future__ import annotations

import onnx_ir as ir

from ruvcompile.passes.scope import all_nodes
from ruvrun.executors.graph import half_kernels

_FREE = "InsertedPrecisionFreeCast_"
"""Its name for a cast of its own, by which it knows that nobody asked for the rounding."""

HALF, WHOLE = ir.DataType.FLOAT16, ir.DataType.FLOAT


def widen(model: ir.Model, whole: ir.Model) -> None:
    """Let the float16 ports of a stage's ``model`` be float32, but for those that are ports of ``whole``, too."""
    graph = model.graph
    kept = {value.name for value in (*whole.graph.inputs, *whole.graph.outputs)}
    entering = [value for value in graph.inputs if value.dtype == HALF and value.name not in kept]
    leaving = [value for value in graph.outputs if value.dtype == HALF and value.name not in kept]
    if not entering and not leaving:
        return
    nodes = list(all_nodes(graph))
    names = _Names({node.name for node in nodes} | {value.name for node in nodes for value in node.outputs})
    inside = {node.name for node in graph}
    originals = {value.name: value for node in whole.graph for value in node.outputs}
    for value in entering:
        added = [_node("Cast", value, HALF, names.free(f"{value.name}/half"))]
        maker = originals[value.name].producer()
        if maker is not None and not _has_kernel(maker):
            added.append(_node("Sum", added[0].outputs[0], HALF, names.free(f"{value.name}/sum")))
        value.replace_all_uses_with(added[-1].outputs[0])
        added[0].replace_input_with(0, value)
        value.dtype = WHOLE
        graph.insert_before(graph[0], added)
    for value in leaving:
        name, value.name = str(value.name), names.free(f"{value.name}/half")
        readers = [use.node for use in originals[name].uses() if use.node.name not in inside]
        last = value
        if not any(reader.graph is not whole.graph or _has_kernel(reader) for reader in readers):
            graph.append(_node("Sum", value, HALF, names.free(f"{name}/sum")))
            last = graph[-1].outputs[0]
        graph.append(_node("Cast", last, WHOLE, name))
        graph.outputs[graph.outputs.index(value)] = graph[-1].outputs[0]


class _Names:
    """Names that are taken."""

    def __init__(self, taken: set[str | None]) -> None:
        self._taken = taken

    def free(self, name: str) -> str:
        """``name``, or one like it; it is taken from now on."""
        while name in self._taken or f"{_FREE}{name}" in self._taken:
            name += ".2"
        self._taken.add(name)
        return name


def _has_kernel(node: ir.Node) -> bool:
    return (node.domain, node.op_type) in half_kernels()


def _node(op: str, value: ir.Value, to: ir.DataType, name: str) -> ir.Node:
    """A Cast or Sum of ``value``, which makes the value ``name``."""
    attributes = {"to": int(to)} if op == "Cast" else {}
    node = ir.node(op, [value], attributes, name=f"{_FREE}{name}" if op == "Cast" else name)
    made = node.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(to), value.shape
    return node
