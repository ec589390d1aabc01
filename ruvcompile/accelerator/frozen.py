"""A graph whose every tensor has the size that it had in one run.

1. What depends on sizes and weights alone (Shape, and what is computed of it) becomes a weight, with the value of that
   run; so do constants.
2. Flatten, Squeeze and Unsqueeze become the Reshape that they are.
3. Every value says its type and size.

A graph output stays what it is, and so does what is left to chance.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ruvcompile.passes.chance import left_to_chance
from ruvcompile.passes.edit import constant
from ruvcompile.passes.infer import Type
from ruvcompile.passes.scope import is_weight, reads
from ruvcompile.whole import run_whole
from ruvrun.elements import Value

_SIZES = ("Shape", "Size")
_SAME_ORDER = ("Flatten", "Squeeze", "Unsqueeze")


def freeze(model: ir.Model, samples: Mapping[str, Value], types: Mapping[str, Type]) -> ir.Model:
    """A copy of a canonical ``model`` for tensors of these sizes.

    Args:
        model: not changed.
        samples: its inputs.
        types: of its values in a run on them, by name.
    """
    copy = model.clone()
    fixed = _fixed(copy)
    read = [value for node in copy.graph if node not in fixed for value in reads(node) if value.producer() in fixed]
    if wanted := {str(value.name): value for value in read}:
        found = _values(model, list(wanted), samples)
        for name, value in wanted.items():
            value.replace_all_uses_with(constant(copy.graph, f"{name}/fixed", np.asarray(found[name])))
    copy.graph.remove(list(fixed), safe=True)
    for node in list(copy.graph):
        if node.op_type in _SAME_ORDER and node.domain == "" and str(node.outputs[0].name) in types:
            _reshape(copy.graph, node, types[str(node.outputs[0].name)])
    for value in [*copy.graph.inputs, *(value for node in copy.graph for value in node.outputs)]:
        if (kind := types.get(str(value.name))) is not None:
            value.type, value.shape = ir.TensorType(kind.dtype), ir.Shape(kind.shape)
    return copy


def _fixed(model: ir.Model) -> set[ir.Node]:
    """The nodes that compute the same whatever the inputs hold."""
    chance, known = left_to_chance(model), set[ir.Value]()
    found = set()
    for node in model.graph:
        kept = any(value.is_graph_output() or value.name in chance for value in node.outputs)
        if not kept and (node.op_type in _SIZES or all(is_weight(value) or value in known for value in reads(node))):
            found.add(node)
            known.update(node.outputs)
    return found


def _values(model: ir.Model, names: list[str], samples: Mapping[str, Value]) -> dict[str, Value]:
    """What these values are in a run."""
    copy = model.clone()
    values = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [values[name] for name in names]
    return run_whole(copy, samples)


def _reshape(graph: ir.Graph, node: ir.Node, kind: Type) -> None:
    """Put a Reshape to the size of ``kind`` in the place of ``node``."""
    output = node.outputs[0]
    name = str(output.name)
    shape = constant(graph, f"{name}/shape", np.array(kind.shape, np.int64))
    made = ir.node("Reshape", [node.inputs[0], shape], name=node.name)
    graph.insert_before(node, made)
    output.name = f"{name}/replaced"
    made.outputs[0].name = name
    ir.convenience.replace_all_uses_with(output, made.outputs[0], replace_graph_outputs=True)
    graph.remove(node, safe=True)
