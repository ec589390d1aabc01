"""Looking at an exported graph: what made a value, what reads it, and what a value is that positions alone decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.runs import Sizes, probes
from ruvcompile.passes.edit import made_by
from ruvcompile.passes.extract import functions_of
from ruvcompile.passes.scope import bodies, is_weight, reads
from ruvcompile.passes.state import CACHE_POSITION, FILLED, MASK, POSITIONS
from ruvcompile.whole import open_session, run
from ruvrun.executors import Array

# Elements up to which a value that never changes becomes a constant.
_SMALL = 16


class Unclear(Exception):  # noqa: N818 - no error: the graph is then run as it is
    """A pattern that is not known; the text says where."""


def through(value: ir.Value | None, *kinds: str) -> ir.Value | None:
    """``value``, followed back through nodes of ``kinds`` along their first inputs."""
    while (node := made_by(value, *kinds)) is not None:
        value = node.inputs[0]
    return value


def scalar(value: ir.Value | None) -> float | None:
    """The number that a weight of one element is."""
    if value is None or not is_weight(value) or value.const_value is None or value.const_value.size != 1:
        return None
    return float(value.const_value.numpy().reshape(-1)[0])


def numbers(value: ir.Value | None) -> list[int] | None:
    """The whole numbers in a small weight."""
    if value is None or not is_weight(value) or value.const_value is None or value.const_value.size > 8:
        return None
    return [int(each) for each in value.const_value.numpy().reshape(-1)]


def pair_of(node: ir.Node) -> list[tuple[ir.Value, ir.Value]]:
    """The two inputs of a commutative node, both ways round."""
    first, second = node.inputs[0], node.inputs[1]
    assert first is not None and second is not None
    return [(first, second), (second, first)]


def local_values(graph: ir.Graph) -> set[ir.Value]:
    """Values that positions and weights alone decide."""
    known = {value for value in graph.inputs if value.name in FILLED}
    for node in graph:
        if all(value in known or is_weight(value) for value in reads(node)):
            known.update(node.outputs)
    return known


def filled(sizes: Sizes) -> dict[str, Array]:
    """What a stage is given for a call of these sizes."""
    positions = np.arange(sizes.past, sizes.total, dtype=np.int64)
    return {
        POSITIONS: np.tile(positions, (sizes.batch, 1)),
        MASK: np.ones((sizes.batch, sizes.total), np.int64),
        CACHE_POSITION: positions,
    }


def evaluate(model: ir.Model, values: Sequence[ir.Value], sizes: Sizes) -> list[Array]:
    """What local values are in a call of these sizes."""
    made = list(dict.fromkeys(value for value in values if not is_weight(value)))
    found: Mapping[str, Array] = {}
    if made:
        part = _part(model, made)
        wanted = {str(value.name): value.dtype for value in part.graph.inputs}
        arrays = {
            name: array.astype(dtype.numpy())
            for name, array in filled(sizes).items()
            if (dtype := wanted.get(name)) is not None
        }
        found = run(open_session(part, optimise=False), arrays)
    return [_numpy(value) if is_weight(value) else found[str(value.name)] for value in values]


def _part(model: ir.Model, values: Sequence[ir.Value]) -> ir.Model:
    """A model of just what makes ``values``."""
    graph = model.graph
    nodes: set[ir.Node] = set()
    read: dict[ir.Value, None] = {}
    waiting = list(values)
    while waiting:
        maker = waiting.pop().producer()
        if maker is not None and maker not in nodes:
            nodes.add(maker)
            for value in reads(maker):
                read[value] = None
                waiting.append(value)
    view = ir.GraphView(
        [value for value in graph.inputs if value in read],
        list(values),
        nodes=[node for node in graph if node in nodes],
        initializers=[value for value in read if is_weight(value)],
        opset_imports=dict(graph.opset_imports),
        name="part",
    )
    functions = functions_of(model, nodes)
    return ir.Model(view.clone(), ir_version=model.ir_version, functions=[each.clone() for each in functions])


def fold_constants(model: ir.Model, context: int) -> None:
    """Make weights of the small local values that are the same whatever the call's sizes, in place."""
    graph = model.graph
    values = [value for value in local_values(graph) if value.producer() is not None]
    if not values:
        return
    sizes = probes(model, context)[:3]
    seen = [evaluate(model, values, size) for size in sizes]
    for value, *arrays in zip(values, *seen, strict=True):
        first = arrays[0]
        if first.size <= _SMALL and all(np.array_equal(first, each) for each in arrays[1:]):
            weight = ir.Value(
                name=f"{value.name}/constant",
                shape=ir.Shape(first.shape),
                type=ir.TensorType(ir.DataType.from_numpy(first.dtype)),
                const_value=ir.Tensor(first, name=f"{value.name}/constant"),
            )
            graph.register_initializer(weight)
            ir.convenience.replace_all_uses_with(value, weight)
    drop_unread(graph)


def merge_equal(graph: ir.Graph) -> None:
    """Let nodes that compute the same of positions be one, in place; exporters repeat them for every layer."""
    known = local_values(graph)
    first: dict[object, ir.Node] = {}
    for node in list(graph):
        if any(value not in known for value in node.outputs) or next(bodies(node), None) is not None:
            continue
        attributes = tuple(
            (name, each.as_tensor().tobytes() if each.type == ir.AttributeType.TENSOR else str(each.value))
            for name, each in sorted(node.attributes.items())
        )
        inputs = tuple(_content(value) for value in node.inputs)
        same = first.setdefault((node.op_identifier(), inputs, attributes, len(node.outputs)), node)
        if same is not node:
            for old, new in zip(node.outputs, same.outputs, strict=True):
                ir.convenience.replace_all_uses_with(old, new)
    drop_unread(graph)


def _content(value: ir.Value | None) -> object:
    """What makes a value equal to another: itself, but of small weights their bytes."""
    tensor = value.const_value if value is not None and is_weight(value) else None
    if tensor is None or tensor.size > _SMALL or tensor.dtype == ir.DataType.STRING:
        return value
    return tensor.dtype, tuple(tensor.shape.numpy()), tensor.tobytes()


def _numpy(value: ir.Value) -> Array:
    assert value.const_value is not None
    return value.const_value.numpy()


def drop_unread(graph: ir.Graph) -> None:
    """Remove nodes and weights that nobody reads any more."""
    for node in reversed(list(graph)):
        if not any(value.uses() or value.is_graph_output() for value in node.outputs):
            graph.remove(node, safe=True)
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]


def add_node(
    graph: ir.Graph,
    before: ir.Node,
    kind: str,
    inputs: Sequence[ir.Value | None],
    name: str,
    attributes: Mapping[str, int | float | str | Sequence[int]] | None = None,
    outputs: int = 1,
    domain: str = "",
) -> ir.Node:
    """Insert a node called ``name`` before another; its outputs are called after it."""
    node = ir.node(kind, inputs, attributes=dict(attributes or {}), domain=domain, name=name, num_outputs=outputs)
    for number, value in enumerate(node.outputs):
        value.name = name if number == 0 else f"{name}.{number}"
    graph.insert_before(before, node)
    return node
