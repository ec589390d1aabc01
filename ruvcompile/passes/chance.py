"""Which values of a graph are left to chance: another run on the same inputs gives others.

1. What an operator of ``RANDOM`` makes, in a body or in a function that is called as well.
2. What a Dropout makes whose training mode is not known to be off.
3. What is computed from any of those.

A seed in the operator does not change that: it makes the first run after loading repeatable, not the second.
"""

from __future__ import annotations

import onnx_ir as ir

from ruvcompile.passes.scope import all_nodes, reads

RANDOM = frozenset(
    ("RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli")
)
"""Operators whose results are drawn; of any domain, for contrib ones have the same names."""


def left_to_chance(model: ir.Model) -> frozenset[str]:
    """The names of the top-level values of ``model`` that are left to chance."""
    drawing: set[ir.OperatorIdentifier] = set()
    waiting = True
    while waiting:  # a function may call another one that comes later
        more = {
            key
            for key, function in model.functions.items()
            if key not in drawing and any(_draws(node, drawing) for node in all_nodes(function))
        }
        drawing |= more
        waiting = bool(more)
    found: set[ir.Value] = set()
    for node in model.graph:
        if any(_draws(each, drawing) for each in all_nodes([node])) or not found.isdisjoint(reads(node)):
            found.update(node.outputs)
    return frozenset(value.name for value in found if value.name)


def _draws(node: ir.Node, drawing: set[ir.OperatorIdentifier]) -> bool:
    if node.op_type in RANDOM or node.op_identifier() in drawing:
        return True
    if node.op_type != "Dropout" or len(node.inputs) < 3 or (mode := node.inputs[2]) is None:
        return False
    return mode.const_value is None or bool(mode.const_value.numpy().any())
