"""What a node really reads, and the bodies inside it.

A node with bodies (If, Loop, Scan) reads more than its inputs: a body may use any value of the graphs around
it, without naming it anywhere on the node. Every question about dependencies, of a cut, of a dead node, of a
name that is taken, goes wrong in the same way when that is forgotten; so it is answered here, once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import onnx_ir as ir


def bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs directly inside ``node``, in the order of its attributes."""
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def all_bodies(node: ir.Node) -> Iterator[ir.Graph]:
    """The graphs inside ``node`` at every depth, outer before inner."""
    for body in bodies(node):
        yield body
        for inner in body:
            yield from all_bodies(inner)


def all_nodes(nodes: Iterable[ir.Node]) -> Iterator[ir.Node]:
    """The nodes and all nodes of their bodies, outer before inner."""
    for node in nodes:
        yield node
        for body in bodies(node):
            yield from all_nodes(body)


def reads(node: ir.Node) -> tuple[ir.Value, ...]:
    """The values ``node`` depends on: its inputs, then what its bodies capture; each once, absent inputs left out."""
    found = {value: None for value in node.inputs if value is not None}
    graphs = list(all_bodies(node))
    if not graphs:
        return tuple(found)
    inside: set[ir.Value] = set()
    for body in graphs:
        inside.update(body.inputs, body.initializers.values())
        inside.update(output for inner in body for output in inner.outputs)
    for body in graphs:
        for inner in body:
            found.update((value, None) for value in inner.inputs if value is not None and value not in inside)
        found.update((value, None) for value in body.outputs if value not in inside)
    return tuple(found)


def is_weight(value: ir.Value) -> bool:
    """Whether ``value`` is an initialiser that nobody can feed: it travels with a stage and never crosses a cut."""
    return value.is_initializer() and not value.is_graph_input()
