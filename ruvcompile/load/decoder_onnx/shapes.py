"""What the graph of an exported decoder asks about shapes, answered from positions alone.

Exporters ask every activation for its shape, to reshape others: thousands of small nodes, each of which ties a later
part of the graph to an earlier one. All of those shapes follow from four numbers: batch, new positions, past
positions, and the model's constants. So:

1. Two inputs that any stage can be given are made the source of all sizes: ``position_ids`` ``[batch, sequence]`` and
   ``attention_mask`` ``[batch, total]``. They are added where the graph has not got them.
2. The graph is run on a few sizes (``runs``). Where each element of what a ``Shape`` node yields is one of batch,
   sequence, past, total, or a constant, in every run, the node is replaced by that.
3. What is not as simple stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.runs import Dims, Seen
from ruvcompile.passes.edit import constant
from ruvcompile.passes.state import MASK, POSITIONS


def asked(model: ir.Model) -> tuple[str, ...]:
    """The values to look at: what ``Shape`` nodes yield, and what ``Reshape`` and ``Cast`` nodes read and make."""
    around = (node for node in model.graph if node.op_type in ("Reshape", "Cast"))
    values = [value for node in around for value in (node.inputs[0], node.outputs[0]) if value is not None]
    return tuple(dict.fromkeys(str(value.name) for value in (*(node.outputs[0] for node in _shapes(model)), *values)))


def settle_shapes(model: ir.Model, seen: Seen) -> None:
    """Apply rule 2 to ``model``, in place; it has both inputs of rule 1."""
    made: dict[str, ir.Value] = {}
    for node in _shapes(model):
        answer = seen.elements(str(node.outputs[0].name))
        if answer is not None:
            _replace(model.graph, node, answer, made)


def describe(model: ir.Model, seen: Seen) -> None:
    """Give every value that was looked at its type and, where it is simple, its shape; in place."""
    for value in (value for node in model.graph for value in node.outputs if value.name in seen.kinds):
        value.type = ir.TensorType(ir.DataType.from_numpy(seen.kinds[str(value.name)]))
        if (dims := seen.dims(str(value.name))) is not None:
            value.shape = ir.Shape(dims)


def _shapes(model: ir.Model) -> list[ir.Node]:
    nodes = (node for node in model.graph if node.op_type == "Shape" and node.domain == "")
    return [node for node in nodes if node.inputs[0] is not None and node.inputs[0].name not in (POSITIONS, MASK)]


def _replace(graph: ir.Graph, node: ir.Node, answer: Dims, made: dict[str, ir.Value]) -> None:
    parts = [_source(graph, each, made) for each in answer]
    old = node.outputs[0]
    new = ir.node("Concat", parts, {"axis": 0}, name=f"sizes/{old.name}", num_outputs=1)
    new.outputs[0].name, new.outputs[0].type, new.outputs[0].shape = f"sizes/{old.name}", old.type, old.shape
    graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(old, new.outputs[0])
    graph.remove(node, safe=True)


def _source(graph: ir.Graph, what: str | int, made: dict[str, ir.Value]) -> ir.Value:
    """A vector of one element: a size, out of the inputs that hold it, or a constant."""
    name = f"sizes/{what}"
    if name in made:
        return made[name]
    if isinstance(what, int):
        made[name] = constant(graph, name, np.array([what], np.int64))
    elif what == "past":
        total, sequence = (_source(graph, part, made) for part in ("total", "sequence"))
        made[name] = _at_start(graph, "Sub", [total, sequence], name)
    else:
        inputs = {str(value.name): value for value in graph.inputs}
        source, axis = (inputs[MASK], 1) if what == "total" else (inputs[POSITIONS], int(what == "sequence"))
        shape = f"sizes/{source.name}/shape"
        if shape not in made:
            made[shape] = _at_start(graph, "Shape", [source], shape)
        index = constant(graph, f"sizes/at/{axis}", np.array([axis], np.int64))
        made[name] = _at_start(graph, "Gather", [made[shape], index], name, {"axis": 0})
    return made[name]


def _at_start(
    graph: ir.Graph, kind: str, inputs: list[ir.Value], name: str, attributes: Mapping[str, int] | None = None
) -> ir.Value:
    """A node that reads only inputs and nodes made here, put where everything after it may read it."""
    node = ir.node(kind, inputs, dict(attributes or {}), name=name, num_outputs=1)
    node.outputs[0].name = name
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    behind = [value.producer() for value in inputs]
    last = [maker for maker in behind if maker is not None]
    if last:
        graph.insert_after(max(last, key=list(graph).index), node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    return node.outputs[0]


def add_sources(model: ir.Model) -> None:
    """Apply rule 1: give ``model`` the inputs that all sizes come from, where it has not got them."""
    present = {str(value.name) for value in model.graph.inputs}
    for name, shape in ((POSITIONS, ("batch", "sequence")), (MASK, ("batch", "total"))):
        if name not in present:
            value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.INT64))
            model.graph.inputs.append(value)
