"""Rotary embedding in an exported graph, as the one node that it is.

Exporters write it in two ways: torch's newer one as ``RotaryEmbedding`` on ``[batch, heads, sequence, size]`` with
cosines and sines of the call's positions, the older one spelt out, ``x * cos + rotate_half(x) * sin``. Either may be
over the first part of each head only, with the rest put behind it by a ``Concat``.

Cosines and sines are values that positions alone decide. Whatever scaling made them, they are computed once, by
running their part of the graph for every position there is, and that is the table. A table that depends on more than
the position itself (on how long the text is by now) is not clear.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import Unclear, evaluate, numbers, pair_of
from ruvcompile.load.decoder_onnx.runs import Sizes
from ruvcompile.passes.edit import constant, made_by
from ruvrun.executors import Array

_LAST = (3, -1)
_END = 1 << 31


@dataclass(frozen=True)
class Rope:
    """The values that hold cosines and sines; ``halved`` where each stands twice, once for each half of a head."""

    cos: ir.Value
    sin: ir.Value
    interleaved: bool
    halved: bool


def find_rope(value: ir.Value, local: Collection[ir.Value]) -> tuple[ir.Value, Rope | None]:
    """What is rotated to make ``value`` ``[batch, heads, sequence, size]``, and how; else ``value`` itself."""
    if (node := made_by(value, "RotaryEmbedding")) is not None and node.domain == "":
        source, cos, sin = node.inputs[:3]
        assert source is not None and cos is not None and sin is not None
        if len(node.inputs) > 3 or cos not in local or sin not in local:
            raise Unclear(f"{node.name} takes its angles from elsewhere")
        if "rotary_embedding_dim" in node.attributes and node.attributes["rotary_embedding_dim"].as_int():
            raise Unclear(f"{node.name} rotates a part of each head")
        interleaved = "interleaved" in node.attributes and bool(node.attributes["interleaved"].as_int())
        return source, Rope(cos, sin, interleaved, halved=False)
    if (node := made_by(value, "Add")) is not None:
        for straight, turned in pair_of(node):
            found = _spelt_out(straight, turned, local)
            if found is not None:
                return found
    if (node := made_by(value, "Concat")) is not None and len(node.inputs) == 2:
        first, rest = node.inputs
        assert first is not None and rest is not None
        part, rope = find_rope(first, local)
        left, right = _slice(part), _slice(rest)
        if rope is not None and left is not None and right is not None and left[0] is right[0]:
            halves = left[1] == 0 and left[2] == right[1] > 0 and right[2] >= _END
            return (left[0], rope) if halves else (value, None)
    return value, None


def _spelt_out(straight: ir.Value, turned: ir.Value, local: Collection[ir.Value]) -> tuple[ir.Value, Rope] | None:
    one, two = made_by(straight, "Mul"), made_by(turned, "Mul")
    if one is None or two is None:
        return None
    for source, cos in pair_of(one):
        for half, sin in pair_of(two):
            if cos in local and sin in local and _rotates(half, source):
                return source, Rope(_unfolded(cos), _unfolded(sin), interleaved=False, halved=True)
    return None


def _unfolded(value: ir.Value) -> ir.Value:
    """A table without the axis that was put in for the heads."""
    node = made_by(value, "Unsqueeze")
    source = node.inputs[0] if node is not None else None
    return source if source is not None else value


def _rotates(half: ir.Value, source: ir.Value) -> bool:
    """Whether ``half`` is ``concat(-source[size / 2:], source[:size / 2])``."""
    joined = made_by(half, "Concat")
    if joined is None or len(joined.inputs) != 2 or joined.attributes["axis"].as_int() not in _LAST:
        return False
    negated = made_by(joined.inputs[0], "Neg")
    second = _slice(negated.inputs[0]) if negated is not None else None
    first = _slice(joined.inputs[1])
    return first is not None and second is not None and first[0] is source and second[0] is source and first[1] == 0


def _slice(value: ir.Value | None) -> tuple[ir.Value, int, int] | None:
    """Source, start and end of a ``Slice`` over the last axis; a bound that is computed is -1."""
    node = made_by(value, "Slice")
    if node is None or len(node.inputs) < 4 or numbers(node.inputs[3]) not in ([3], [-1]):
        return None
    source, start, end = node.inputs[0], numbers(node.inputs[1]), numbers(node.inputs[2])
    assert source is not None
    return source, start[0] if start else -1, end[0] if end else -1


class Tables:
    """The rotary tables of a model, each made once, as initializers ``[context, pairs]``."""

    def __init__(self, model: ir.Model, context: int) -> None:
        self.model = model
        self.context = context
        self._known: list[tuple[str, Array, Array]] = []
        self._made: dict[Rope, tuple[ir.Value, ir.Value]] = {}

    def initializers(self, rope: Rope) -> tuple[ir.Value, ir.Value]:
        """The tables of cosines and sines.

        Raises:
            Unclear: they depend on more than the position.
        """
        if rope in self._made:
            return self._made[rope]
        cos, sin = (self._half(each, rope) for each in self._rows(rope, Sizes(1, self.context, 0)))
        some = Sizes(1, 3, min(5, self.context - 3))
        for table, rows in zip((cos, sin), self._rows(rope, some), strict=True):
            if not np.allclose(self._half(rows, rope), table[some.past : some.total], atol=1e-5):
                raise Unclear("rotary angles depend on more than the position")
        self._made[rope] = self.keep(cos, sin)
        return self._made[rope]

    def keep(self, cos: Array, sin: Array) -> tuple[ir.Value, ir.Value]:
        """The initializers that hold these tables."""
        same = (name for name, *known in self._known if all(map(np.array_equal, known, (cos, sin))))
        if (name := next(same, "")) == "":
            name = "rotary" if not self._known else f"rotary.{len(self._known)}"
            self._known.append((name, cos, sin))
        graph = self.model.graph
        return constant(graph, f"{name}.cos", cos), constant(graph, f"{name}.sin", sin)

    def _rows(self, rope: Rope, sizes: Sizes) -> list[Array]:
        found = []
        for array in evaluate(self.model, [rope.cos, rope.sin], sizes):
            rows = array.reshape(-1, array.shape[-1])
            if rows.shape[0] != sizes.sequence:
                raise Unclear("rotary angles are not one row for each position")
            found.append(np.ascontiguousarray(rows, np.float32))
        return found

    def _half(self, rows: Array, rope: Rope) -> Array:
        if not rope.halved:
            return rows
        half = rows.shape[1] // 2
        if not np.array_equal(rows[:, :half], rows[:, half:]):
            raise Unclear("the two halves of a head are rotated differently")
        return np.ascontiguousarray(rows[:, :half])
