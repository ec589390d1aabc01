"""The attention of an exported layer, as one ``Attention`` node with past and present.

Three ways of writing it are known:

1. ``GroupQueryAttention`` (onnxruntime-genai's builder), of packed or separate projections (``layer``);
2. ``Attention`` (torch's newer exporter) over ``Concat(past, new)``, with a mask (``core``);
3. spelt out (optimum): ``Softmax(Q K' * scale + mask) V``, over the same, key/value heads repeated first (``core``).

Each is looked at from the layer's state on. What was written around it (reshapes, transposes, repeated heads, masks)
falls away unread. The new node takes ``[batch, sequence, heads * size]``, heads told by attribute.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.core import find_core
from ruvcompile.load.decoder_onnx.layer import Layer, grouped
from ruvcompile.load.decoder_onnx.look import Unclear, add_node
from ruvcompile.load.decoder_onnx.masks import window_of
from ruvcompile.load.decoder_onnx.rotary import Rope, Tables, find_rope
from ruvcompile.load.decoder_onnx.runs import Dims, heads_of, size_of
from ruvcompile.lower.onnxruntime.attention import HEAD_MULTIPLE
from ruvcompile.passes.edit import constant, made_by, replace_value
from ruvcompile.passes.state import POSITIONS, Pair

_SWAPPED = (0, 2, 1, 3)


class Attentions:
    """Finds and rewrites the attention of every layer of ``model``, in place.

    Args:
        model: with shapes settled.
        local: values that positions alone decide.
        dims: shapes around the ``Reshape`` nodes, as far as known.
        context: positions there are.
    """

    def __init__(self, model: ir.Model, local: Collection[ir.Value], dims: Mapping[str, Dims], context: int) -> None:
        self.model = model
        self.graph = model.graph
        self.local = local
        self.dims = dims
        self.context = context
        self.tables = Tables(model, context)
        self._windows: dict[ir.Value, int] = {}

    def find(self, key: Pair, value: Pair) -> Layer:
        """The attention of the layer with this state.

        Raises:
            Unclear: it is written in no way that is known.
        """
        maker = key.present.producer()
        if maker is not None and maker is value.present.producer() and maker.op_type == "GroupQueryAttention":
            return grouped(self.model, maker, key, self.local, self.tables, self.context)
        if maker is None or maker.op_type != "Concat" or made_by(value.present, "Concat") is None:
            raise Unclear(f"{key.present.name} is made by {maker.op_type if maker is not None else 'nothing'}")
        return self._written(key, value)

    def rewrite(self, layer: Layer, key: Pair, value: Pair) -> None:
        """Put the one node in place of all."""
        at = f"layers.{key.layer}/attention"
        size, kv_heads = size_of(key.past), heads_of(key.past)
        query, keys = layer.query, layer.key
        if layer.tables is not None:
            positions = next(each for each in self.graph.inputs if each.name == POSITIONS)
            query, keys = (
                self._rotary(layer, each, f"{at}/{part}_rope", heads, size, positions)
                for each, part, heads in ((query, "q", layer.heads), (keys, "k", kv_heads))
            )
        attributes: dict[str, int | float] = {"is_causal": 1, "q_num_heads": layer.heads, "kv_num_heads": kv_heads}
        if not np.isclose(layer.scale, size**-0.5, rtol=1e-6):
            attributes["scale"] = layer.scale
        if layer.softcap:
            attributes["softcap"] = layer.softcap
        if layer.window:
            attributes["left_window_size"] = layer.window - 1
        operands = [query, keys, layer.value, None, key.past, value.past]
        node = add_node(self.graph, layer.node, "Attention", operands, at, attributes, outputs=3)
        for old, new in zip((layer.result, key.present, value.present), node.outputs, strict=True):
            replace_value(old, new)

    def _rotary(self, layer: Layer, value: ir.Value, name: str, heads: int, size: int, positions: ir.Value) -> ir.Value:
        assert layer.tables is not None
        cos, sin = layer.tables
        assert cos.shape is not None
        attributes = {"num_heads": heads, "interleaved": int(layer.interleaved)}
        rotated = 2 * int(cos.shape.numpy()[1])
        if rotated % HEAD_MULTIPLE:
            raise Unclear(f"{rotated} channels of each head are rotated, which is no multiple of {HEAD_MULTIPLE}")
        if rotated < size:
            attributes["rotary_embedding_dim"] = rotated
        node = add_node(self.graph, layer.node, "RotaryEmbedding", [value, cos, sin, positions], name, attributes)
        return node.outputs[0]

    def _written(self, key: Pair, value: Pair) -> Layer:
        core = find_core(key, value, self.local)
        if core.mask not in self._windows:
            self._windows[core.mask] = window_of(self.model, core.mask, self.context)
        new_key, new_value = (pair.present.producer().inputs[1] for pair in (key, value))  # type: ignore[union-attr]  # Concat
        assert new_key is not None and new_value is not None
        query4, query_rope = find_rope(core.query, self.local)
        key4, key_rope = find_rope(new_key, self.local)
        result = self._flat(core.result)
        node = result.producer()
        assert node is not None, "it is made by a Reshape"
        return Layer(
            node,
            self._together(query4, core.node),
            self._together(key4, core.node),
            self._together(new_value, core.node),
            result,
            self._heads(query4, key),
            core.scale or size_of(key.past) ** -0.5,
            core.softcap,
            self._windows[core.mask],
            self._same_tables(query_rope, key_rope),
            query_rope is not None and query_rope.interleaved,
        )

    def _same_tables(self, query: Rope | None, key: Rope | None) -> tuple[ir.Value, ir.Value] | None:
        if query is None and key is None:
            return None
        if query is None or key is None:
            raise Unclear("only one of query and key is rotated")
        tables = self.tables.initializers(query)
        if self.tables.initializers(key) != tables or query.interleaved != key.interleaved:
            raise Unclear("query and key are rotated differently")
        return tables

    def _together(self, value: ir.Value, before: ir.Node) -> ir.Value:
        """``[batch, sequence, heads * size]`` of a value ``[batch, heads, sequence, size]``."""
        swap = made_by(value, "Transpose")
        if swap is not None and tuple(swap.attributes["perm"].as_ints()) == _SWAPPED:
            apart = swap.inputs[0]
        else:
            perm = {"perm": list(_SWAPPED)}
            apart = add_node(self.graph, before, "Transpose", [value], f"{value.name}/by_position", perm).outputs[0]
        reshape = made_by(apart, "Reshape")
        source = reshape.inputs[0] if reshape is not None else None
        if source is not None and len(self.dims.get(str(source.name), ())) == 3:
            return source
        shape = constant(self.graph, "keep/-1", np.array([0, 0, -1], np.int64))
        return add_node(self.graph, before, "Reshape", [apart, shape], f"{value.name}/together").outputs[0]

    def _flat(self, core: ir.Value) -> ir.Value:
        """``[batch, sequence, heads * size]`` behind the product ``[batch, heads, sequence, size]``."""
        uses = [use.node for use in core.uses()]
        if len(uses) != 1 or uses[0].op_type != "Transpose" or tuple(uses[0].attributes["perm"].as_ints()) != _SWAPPED:
            raise Unclear(f"{core.name} is not put together again")
        behind = [use.node for use in uses[0].outputs[0].uses()]
        if len(behind) != 1 or behind[0].op_type != "Reshape":
            raise Unclear(f"{core.name} is not put together again")
        result = behind[0].outputs[0]
        if len(self.dims.get(str(result.name), ())) == 3:
            return result
        # Straight to rows of all positions: then the node in between is made here.
        shape = constant(self.graph, "keep/-1", np.array([0, 0, -1], np.int64))
        operands = [behind[0].inputs[0], shape]
        together = add_node(self.graph, behind[0], "Reshape", operands, f"{core.name}/flat").outputs[0]
        behind[0].replace_input_with(0, together)
        return together

    def _heads(self, query4: ir.Value, key: Pair) -> int:
        """How many query heads: the sizes around the query's own reshape say it."""
        found = _heads_behind(query4, self.dims)
        if not found or found % heads_of(key.past):
            raise Unclear("the number of query heads is not plain")
        return found


def _heads_behind(query4: ir.Value, dims: Mapping[str, Dims]) -> int:
    """Heads of a value ``[batch, heads, sequence, size]``, out of the shape of the ``Reshape`` behind it; else 0."""
    value: ir.Value | None = query4
    for _ in range(8):
        node = value.producer() if value is not None else None
        if node is None:
            return 0
        known = dims.get(str(node.outputs[0].name)) if node.op_type == "Reshape" else None
        if known is not None and len(known) == 4 and isinstance(known[2], int):
            return known[2]
        value = node.inputs[0]
    return 0


__all__ = ["Attentions"]
