"""A graph whose every tensor has its size, where that follows from the sizes of the inputs.

1. What depends on sizes and weights alone (Shape, and what is computed of it) becomes a weight, with its value in a
   run; so do constants. With these known more sizes follow, so this is done until nothing is left of it.
2. Flatten, Squeeze and Unsqueeze become the Reshape that they are.
3. Every value whose size follows says so. Where it depends on the data (what NonZero finds) it does not follow: what it
   was in one run is no size for another, and is not taken for one.

A graph output stays what it is, and so does what is left to chance.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ruvcompile.passes.chance import left_to_chance
from ruvcompile.passes.edit import constant
from ruvcompile.passes.infer import Type, follow
from ruvcompile.passes.scope import is_weight, reads
from ruvcompile.whole import run_whole
from ruvrun.elements import Value

_SIZES = ("Shape", "Size")
_SAME_ORDER = ("Flatten", "Squeeze", "Unsqueeze")


def freeze(
    model: ir.Model, samples: Mapping[str, Value], types: Mapping[str, Type]
) -> tuple[ir.Model, dict[str, Type]]:
    """A copy of a canonical ``model`` for inputs of these sizes, and the types of those of its values that follow.

    Args:
        model: not changed.
        samples: its inputs.
        types: of its values in a run on them, by name.
    """
    copy = model.clone()
    for value in copy.graph.inputs:
        if (kind := types.get(str(value.name))) is not None:
            value.shape = ir.Shape(kind.shape)
    sizes = _sizes(copy)
    while fixed := _fixed(copy, sizes):
        read = [value for node in copy.graph if node not in fixed for value in reads(node) if value.producer() in fixed]
        wanted = {str(value.name): value for value in read}
        found = _values(model, list(wanted), samples) if wanted else {}
        for name, value in wanted.items():
            value.replace_all_uses_with(constant(copy.graph, f"{name}/fixed", np.asarray(found[name])))
        copy.graph.remove(list(fixed), safe=True)
        copy = copy.clone()  # what is known of a model is known of it as it was
        sizes = _sizes(copy)
    for node in list(copy.graph):
        if node.op_type in _SAME_ORDER and node.domain == "" and str(node.outputs[0].name) in sizes:
            _reshape(copy.graph, node, sizes[str(node.outputs[0].name)])
    for value in (value for node in copy.graph for value in node.outputs):
        kind = sizes.get(str(value.name))
        value.shape = ir.Shape(kind.shape) if kind is not None else None
        if kind is not None:
            value.type = ir.TensorType(kind.dtype)
    return copy, sizes


def _sizes(model: ir.Model) -> dict[str, Type]:
    """The types of those values whose every size follows from the inputs."""
    return {name: kind for name, kind in follow(model).items() if all(isinstance(size, int) for size in kind.shape)}


def _fixed(model: ir.Model, sizes: Mapping[str, Type]) -> set[ir.Node]:
    """The nodes that compute the same whatever the inputs hold."""
    chance, known = left_to_chance(model), set[ir.Value]()
    found = set()
    for node in model.graph:
        if any(value.is_graph_output() or value.name in chance for value in node.outputs):
            continue
        sized = node.op_type in _SIZES and node.inputs[0] is not None and node.inputs[0].name in sizes
        if sized or all(is_weight(value) or value in known for value in reads(node)):
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
