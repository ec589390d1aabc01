"""Graphs of fixed sizes out of one that leaves them open (``ruvcompile/lower/openvino/npu.py``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import openvino as ov

from ruvrun.executors.masks import MASK
from ruvrun.executors.paged import ROWS

PAST, PRESENT = "past_", "present_"


@dataclass(frozen=True)
class Sizes:
    """How large a graph is: ``tokens`` that are computed, ``positions`` that are kept, ``rows`` of logits."""

    tokens: int
    positions: int
    rows: int

    def of(self, name: str, shape: Any) -> list[int]:
        """The shape of an input, of which the axes behind the open ones are known."""
        if name == ROWS:
            return [self.rows]
        if name.startswith(MASK):
            return [1, 1, self.tokens, self.positions + self.tokens]
        if name.startswith(PAST):
            _, heads, _, head_size = shape
            return [1, heads.get_length(), self.positions, head_size.get_length()]
        return [1, self.tokens, *(size.get_length() for size in list(shape)[2:])]


def make_static(model: Any, sizes: Sizes) -> Any:
    """A copy of ``model``, over the same weights, all of whose shapes are known."""
    static = model.clone()
    names = {port.get_any_name(): port.get_partial_shape() for port in static.inputs}
    static.reshape({name: ov.PartialShape(sizes.of(name, shape)) for name, shape in names.items()})
    return static
