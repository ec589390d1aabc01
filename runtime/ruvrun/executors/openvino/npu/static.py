"""Graphs of fixed sizes out of one that leaves them open (``ruvcompile/lower/openvino/npu.py``)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from ruvrun.elements import Array
from ruvrun.executors.openvino.masks import HIDDEN, MASK, window_masks
from ruvrun.executors.openvino.ports import ROWS
from ruvrun.executors.pages import zeroed

PAST, PRESENT = "past_", "present_"


@dataclass(frozen=True)
class Sizes:
    """How large a graph is: ``tokens`` that are computed, ``positions`` that are kept, ``rows`` of logits."""

    tokens: int
    positions: int
    rows: int

    def __str__(self) -> str:
        return f"tokens {self.tokens}, positions {self.positions}, rows {self.rows}"

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


class StaticGraph:
    """One of the graphs: a request with its arrays, which are filled in place.

    Args:
        compiled: the graph.
        sizes: what it was made for.
        kept: keys and values, by the names of their ports; all graphs of a stage have the same, and the first one
            makes them.
    """

    def __init__(self, compiled: Any, sizes: Sizes, kept: dict[str, Array]) -> None:
        self.sizes = sizes
        self.request = compiled.create_infer_request()
        self.arrays: dict[str, Array] = {}
        for port in compiled.inputs:
            name = port.get_any_name()
            shape, dtype = list(port.get_shape()), np.dtype(port.get_element_type().to_dtype())
            if not name.startswith(PAST):
                array = self.arrays[name] = np.zeros(shape, dtype)
            elif name in kept:
                array = kept[name]
            else:
                array = kept[name] = zeroed(math.prod(shape) * dtype.itemsize).view(dtype).reshape(shape)
            self.request.set_tensor(port, ov.Tensor(array, shared_memory=True))
        self._outputs = {port.get_any_name(): port for port in compiled.outputs}
        self.windows = window_masks(self.arrays)
        for name in self.windows:  # a token that is nobody's sees itself, and what it makes is a number
            mask = self.arrays[name][0, 0]
            mask[:] = HIDDEN
            np.fill_diagonal(mask[:, sizes.positions :], 0)
        if ROWS in self.arrays:
            self.arrays[ROWS][:] = np.arange(sizes.rows)

    def run(self) -> dict[str, Array]:
        """Run it; what it gives is overwritten by the next call."""
        self.request.infer()
        return {name: self.request.get_tensor(port).data for name, port in self._outputs.items()}
