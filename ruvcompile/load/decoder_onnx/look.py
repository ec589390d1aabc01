"""Looking at an exported graph: what made a value, what reads it, and what a value is that positions alone decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.shapes import Sizes, probes
from ruvcompile.passes.scope import is_weight, reads
from ruvcompile.passes.state import CACHE_POSITION, FILLED, MASK, POSITIONS
from ruvcompile.whole import open_session, run
from ruvrun.executors import Array

# Elements up to which a value that never changes becomes a constant.
_SMALL = 16


class Unclear(Exception):  # noqa: N818 - no error: the graph is then run as it is
    """A pattern that is not known; the text says where."""


def made_by(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    """The node that makes ``value``, if it is of one of ``kinds``."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in kinds else None


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
    made = {str(value.name): value for value in values if not is_weight(value)}
    found: Mapping[str, Array] = {}
    if made:
        copy = model.clone()
        every = {str(value.name): value for node in copy.graph for value in node.outputs}
        copy.graph.outputs[:] = [every[name] for name in made]
        drop_unread(copy.graph)
        copy.graph.inputs[:] = [value for value in copy.graph.inputs if value.uses()]
        inputs = {str(value.name): value.dtype for value in copy.graph.inputs}
        arrays = {
            name: array.astype(dtype.numpy())
            for name, array in filled(sizes).items()
            if (dtype := inputs.get(name)) is not None
        }
        found = run(open_session(copy, optimise=False), arrays)
    return [_numpy(value) if is_weight(value) else found[str(value.name)] for value in values]


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


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let everything that reads ``old`` read ``new``, which takes over its name and type."""
    name, kind, shape = old.name, old.type, old.shape
    old.name = f"{name}/replaced"
    new.name, new.type, new.shape = name, new.type or kind, new.shape or shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


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
