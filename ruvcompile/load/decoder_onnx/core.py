"""Attention over ``Concat(past, new)``, as torch's newer exporter and optimum write it: where it begins and ends.

Looked at from the layer's values on, through the nodes that repeat their heads: an ``Attention`` with a mask, or the
second product of ``Softmax(Q K' * scale + mask) V``.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import Unclear, pair_of, scalar, through
from ruvcompile.passes.edit import made_by
from ruvcompile.passes.state import Pair

_REPEATS = ("Unsqueeze", "Expand", "Reshape", "Cast")


@dataclass(frozen=True)
class Core:
    """``result`` is ``[batch, heads, sequence, size]``, as ``query`` is; ``scale`` 0 is the usual one."""

    node: ir.Node
    result: ir.Value
    query: ir.Value
    mask: ir.Value
    scale: float
    softcap: float


def find_core(key: Pair, value: Pair, local: Collection[ir.Value]) -> Core:
    """The attention over this state.

    Raises:
        Unclear: it is written in no way that is known.
    """
    reader, index = _reader(value.present)
    if reader.op_type == "Attention" and index == 2:
        return _fused(reader, key, local)
    if reader.op_type == "MatMul" and index == 1:
        return _spelt_out(reader, key, local)
    raise Unclear(f"{value.present.name} is read by {reader.op_type}")


def _fused(node: ir.Node, key: Pair, local: Collection[ir.Value]) -> Core:
    query, mask = node.inputs[0], node.inputs[3] if len(node.inputs) > 3 else None
    known = {name: attribute.value for name, attribute in node.attributes.items()}
    if mask is None or mask not in local or any(node.inputs[4:]) or known.get("is_causal", 0):
        raise Unclear(f"{node.name} has no mask of its own")
    if through(node.inputs[1], *_REPEATS) is not key.present or query is None:
        raise Unclear(f"{node.name} reads other keys")
    return Core(node, node.outputs[0], query, mask, float(known.get("scale", 0.0)), float(known.get("softcap", 0.0)))


def _spelt_out(node: ir.Node, key: Pair, local: Collection[ir.Value]) -> Core:
    """``node`` is the product with the values."""
    weights = node.inputs[0]
    # Exporters guard against rows that see nothing, which there are not: a token sees itself.
    if (guard := made_by(weights, "Where")) is not None and made_by(guard.inputs[0], "IsNaN") is not None:
        weights = guard.inputs[2]
    softmax = made_by(through(weights, "Cast"), "Softmax")
    scores = made_by(through(softmax.inputs[0], "Cast"), "Add") if softmax is not None else None
    if scores is None:
        raise Unclear(f"{node.name} is not fed by a masked softmax")
    for mask, product in pair_of(scores):
        if mask not in local:
            continue
        scale, product = _scaled(product)
        dot = made_by(product, "MatMul")
        if dot is None:
            break
        left, query = _scaled(dot.inputs[0])
        right, keys = _scaled(dot.inputs[1])
        turned = made_by(keys, "Transpose")
        if turned is None or tuple(turned.attributes["perm"].as_ints()) != (0, 1, 3, 2):
            break
        inner, keys = _scaled(turned.inputs[0])
        if through(keys, *_REPEATS) is not key.present:
            break
        return Core(node, node.outputs[0], query, mask, scale * left * right * inner, 0.0)
    raise Unclear(f"{node.name} is fed by scores of another kind")


def _reader(value: ir.Value) -> tuple[ir.Node, int]:
    """The node that reads ``value``, repeated or not, and where."""
    while True:
        uses = [use for use in value.uses() if use.node.op_type != "Shape"]
        if len(uses) != 1:
            raise Unclear(f"{value.name} is read by {len(uses)} nodes")
        (use,) = uses
        if use.node.op_type not in _REPEATS:
            return use.node, use.idx
        value = use.node.outputs[0]


def _scaled(value: ir.Value | None) -> tuple[float, ir.Value]:
    """A constant factor, and what it is applied to."""
    factor = 1.0
    assert value is not None
    while True:
        if (node := made_by(value, "Mul")) is not None:
            for number, other in pair_of(node):
                if (found := scalar(number)) is not None:
                    factor, value = factor * found, other
                    break
            else:
                return factor, value
        elif (node := made_by(value, "Div")) is not None and (found := scalar(node.inputs[1])) and node.inputs[0]:
            factor, value = factor / found, node.inputs[0]
        else:
            return factor, value
