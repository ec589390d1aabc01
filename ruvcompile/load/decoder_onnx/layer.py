"""One layer's attention as it was found, and the way of onnxruntime-genai's builder to write it.

``GroupQueryAttention`` has nearly everything inside: rotary embedding with tables over all positions, window, scale and
cap. It is told lengths instead of positions; that they count what is there, and nothing else, is computed and compared.
Older versions rotate before it, with an operator of their own.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import Unclear, evaluate
from ruvcompile.load.decoder_onnx.projections import unpacked
from ruvcompile.load.decoder_onnx.rotary import Tables
from ruvcompile.load.decoder_onnx.runs import heads_of, probes, size_of
from ruvcompile.passes.edit import made_by
from ruvcompile.passes.quantise import MS_DOMAIN
from ruvcompile.passes.scope import is_weight
from ruvcompile.passes.state import POSITIONS, Pair
from ruvrun.executors import Array


@dataclass(frozen=True)
class Layer:
    """One layer's attention.

    Args:
        node: where it is written, which the new node comes before.
        query: ``[batch, sequence, heads * size]``, not yet rotated; ``key`` and ``value`` likewise.
        key: see ``query``.
        value: see ``query``.
        result: what attention yields, of the same shape as ``query``.
        heads: of queries.
        scale: of scores.
        softcap: of scores; 0 for none.
        window: positions a token sees; 0 for all.
        tables: of cosines and sines; None where nothing is rotated.
        interleaved: whether neighbouring channels are rotated together.
    """

    node: ir.Node
    query: ir.Value
    key: ir.Value
    value: ir.Value
    result: ir.Value
    heads: int
    scale: float
    softcap: float = 0.0
    window: int = 0
    tables: tuple[ir.Value, ir.Value] | None = None
    interleaved: bool = False


def grouped(
    model: ir.Model, node: ir.Node, key: Pair, local: Collection[ir.Value], tables: Tables, context: int
) -> Layer:
    """The layer whose attention is the ``GroupQueryAttention`` ``node``.

    Raises:
        Unclear: it has more inside than the canonical form.
    """
    inputs = [*node.inputs, *([None] * 16)][:16]
    known = {name: attribute.value for name, attribute in node.attributes.items()}
    lengths, total = inputs[5:7]
    if any(inputs[9:]) or known.get("smooth_softmax", 0) not in (0, -1):
        raise Unclear(f"{node.name} has more than rotary embedding inside")
    if lengths is None or total is None or lengths not in local or total not in local:
        raise Unclear(f"{node.name} counts positions in another way")
    for sizes in probes(model, context):
        counted, every = evaluate(model, [lengths, total], sizes)
        if (counted.reshape(-1) != sizes.total - 1).any() or (every.reshape(-1) != sizes.total).any():
            raise Unclear(f"{node.name} counts positions in another way")
    heads, size, kv_heads = int(known["num_heads"]), size_of(key.past), heads_of(key.past)
    query, keys, values = inputs[:3]
    assert query is not None
    if keys is None or values is None:
        query, keys, values = unpacked(model.graph, query, [heads * size, kv_heads * size, kv_heads * size], node)
    cos, sin = inputs[7:9]
    rotary, interleaved = bool(known.get("do_rotary", 0)), bool(known.get("rotary_interleaved", 0))
    if not rotary and made_by(query, "RotaryEmbedding") is not None:
        query, cos, sin, interleaved = _unrotated(query)
        keys, *same = _unrotated(keys)
        if same != [cos, sin, interleaved]:
            raise Unclear(f"{node.name} has query and key rotated differently")
        rotary = True
    return Layer(
        node,
        query,
        keys,
        values,
        node.outputs[0],
        heads,
        float(known.get("scale", 0.0)) or size**-0.5,
        float(known.get("softcap", 0.0)),
        max(int(known.get("local_window_size", -1)), 0),
        tables.keep(_table(node, cos, context), _table(node, sin, context)) if rotary else None,
        interleaved,
    )


def _unrotated(value: ir.Value) -> tuple[ir.Value, ir.Value | None, ir.Value | None, bool]:
    """What the contrib operator before attention rotates, its tables, and whether neighbouring channels go together."""
    node = made_by(value, "RotaryEmbedding")
    if node is None or node.domain != MS_DOMAIN:
        raise Unclear(f"{value.name} is rotated in another way")
    source, positions, cos, sin = node.inputs[:4]
    known = {name: attribute.value for name, attribute in node.attributes.items()}
    width = int(cos.shape.numpy()[1]) if cos is not None and cos.shape is not None and is_weight(cos) else 0
    part = known.get("rotary_embedding_dim", 0) not in (0, 2 * width)
    if positions is None or positions.name != POSITIONS or part or known.get("scale", 1.0) != 1 or source is None:
        raise Unclear(f"{node.name} rotates in another way")
    return source, cos, sin, bool(known.get("interleaved", 0))


def _table(node: ir.Node, value: ir.Value | None, context: int) -> Array:
    if value is None or not is_weight(value) or value.const_value is None:
        raise Unclear(f"{node.name} chooses among rotary tables")
    rows: Array = np.asarray(value.const_value.numpy(), np.float32)[:context]
    if len(rows) < context:
        raise Unclear(f"{node.name} has a rotary table of {len(rows)} positions")
    return rows
