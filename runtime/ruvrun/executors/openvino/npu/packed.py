"""A decoder stage for an NPU: two static graphs without state, and keys and values that are kept here.

An NPU's compiler wants to know every size, and it has no batches. So of a stage (see
``ruvcompile/lower/openvino/npu.py``) two graphs are made when it is loaded, over the same weights:

* ``single``: a token of every slot, side by side on the one axis of tokens; slot *n* has row *n*, whoever else is there
* ``chunk``: a piece of the prompt of one sequence, ``CHUNK`` tokens; what is left over in the last piece is computed,
  and seen by nobody

Keys and values are ports: ``past_key.i`` and ``past_value.i`` ``[1, heads, slots x context, head_size]`` are what is
kept, position *p* of slot *n* at place ``n x context + p``; what a call gives back are those of its tokens alone, and
are put there afterwards. A mask (``masks``) tells each token which places are its own sequence's, and which of the
tokens beside it. So a rewind is a smaller position and never a copy.

Nothing slides: a slot has as many places as the context has positions. Where that is used up a sequence is at its end,
and the head ends its answer with ``length``.

Positions alone and in company are the same bits. Pieces begin at multiples of ``CHUNK``, so a prompt that is divided at
such multiples is computed alike however that was; elsewhere the last digits differ, for attention adds up what it sees
in an order that depends on whether it comes from a port or from beside. So prompts that begin alike are each computed
from the beginning (this is no ``CopyingExecutor``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.elements import Array
from ruvrun.executors import Span
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.kernels import Ran, kernels
from ruvrun.executors.openvino.masks import HIDDEN, fill_mask
from ruvrun.executors.openvino.npu.static import PAST, PRESENT, Sizes, StaticGraph
from ruvrun.executors.openvino.ports import EMBEDDED, IDS, LOGITS, POSITIONS, ROWS

CHUNK = 128
"""Tokens of a piece of a prompt; what the head sends at once, 256, is a multiple."""


class PackedDecoder:
    """A decoder stage on static graphs; a ``DecoderExecutor``.

    Args:
        compiled: makes the graph of some sizes.
        spec: the stage's ``bundle.toml``.
        shelf: where graphs are kept for the next start.
        context: positions per slot.
        slots: sequences at a time.
    """

    def __init__(
        self,
        compiled: Callable[[Sizes], Any],
        spec: StageSpec,
        shelf: Shelf,
        *,
        context: int,
        slots: int,
    ) -> None:
        self.shelf = shelf
        self.slots = slots
        self.context = context
        self._spec = spec
        self._compiled = compiled
        self._kept: dict[str, Array] = {}
        self._piece = min(CHUNK, context)
        self._graphs: dict[Sizes, StaticGraph] = {}
        self._ran: list[StaticGraph] = []
        # A product with one row is another kernel's than one with several.
        rows = max(slots, 2)
        self._single = self._graph(rows, rows)
        self._chunk = self._graph(self._piece, 1)

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; see ``DecoderExecutor.step``."""
        (source,) = self._spec.inputs
        given, tokens = tensors[source.name], sum(span.count for span in spans)
        wanted = sum(span.rows for span in spans)
        found = {}
        for tensor in self._spec.outputs:
            inner = (size for size in tensor.shape[1:] if isinstance(size, int))
            found[tensor.name] = np.empty((wanted if tensor.name == LOGITS else tokens, *inner), tensor.dtype)
        self._ran = []
        if any(span.count == 1 for span in spans):
            self._alone(spans, given, found)
        at = row = 0
        for span in spans:
            if span.count > 1:
                self._prompt(span, given[at : at + span.count], at, row, found)
            at += span.count
            row += span.rows
        return found

    def occupy(self, slots: int, depth: int) -> None:
        """As ``OnnxDecoder.occupy``."""
        for kept in self._kept.values():
            for slot in range(slots):
                kept[:, :, slot * self.context : slot * self.context + depth] = 0.01

    def settle(self) -> None:
        """Run both graphs once; nothing of it is ever read by a sequence."""
        for graph in (self._single, self._chunk):
            graph.run()

    def kernels(self) -> list[Ran]:
        """What ran in the last step, where the stage was opened to tell; of calls of one graph, the last."""
        return kernels(*(graph.request for graph in self._ran))

    def _graph(self, tokens: int, rows: int) -> StaticGraph:
        """The graph of so many tokens and rows of logits; one that is seldom wanted is made when it is."""
        sizes = Sizes(tokens=tokens, positions=self.slots * self.context, rows=rows)
        if sizes not in self._graphs:
            self._graphs[sizes] = StaticGraph(self._compiled(sizes), sizes, self._kept)
        return self._graphs[sizes]

    def _alone(self, spans: Sequence[Span], given: Array, found: dict[str, Array]) -> None:
        """All spans of one token in one call, each in the row of its slot."""
        graph, placed = self._single, list(_placed(spans))
        for span, at, _ in placed:
            self._put(graph, span.slot, span.slot, given[at : at + 1], span.position)
        made = self._run(graph)
        for span, at, row in placed:
            self._keep(made, span.slot, span.slot, span.position, 1)
            for tensor in self._spec.outputs:
                if tensor.name != LOGITS:
                    found[tensor.name][at] = made[tensor.name][0, span.slot]
                elif span.rows:
                    found[tensor.name][row] = made[tensor.name][span.slot]

    def _prompt(self, span: Span, given: Array, at: int, row: int, found: dict[str, Array]) -> None:
        """One span of several tokens, piece by piece; ``at`` and ``row`` are where its results go."""
        end = span.position + span.count
        wanted = end - span.rows  # the first position whose logits are
        for start, stop in _pieces(span.position, end, self._piece):
            count, rows = stop - start, max(0, stop - max(start, wanted))
            graph = self._chunk if rows <= 1 else self._graph(self._piece, self._piece)
            done = start - span.position
            if graph is self._chunk and ROWS in graph.arrays:
                graph.arrays[ROWS][:] = count - 1
            self._put(graph, 0, span.slot, given[done : done + count], start)
            made = self._run(graph)
            self._keep(made, 0, span.slot, start, count)
            for tensor in self._spec.outputs:
                array = made[tensor.name]
                if tensor.name != LOGITS:
                    found[tensor.name][at + done : at + done + count] = array[0, :count]
                elif rows:
                    last = row + stop - wanted
                    found[tensor.name][last - rows : last] = (
                        array if graph is self._chunk else array[count - rows : count]
                    )

    def _put(self, graph: StaticGraph, row: int, slot: int, given: Array, start: int) -> None:
        """Some tokens of the sequence in ``slot``, from position ``start`` on, into the rows from ``row`` on."""
        count = len(given)
        rows, positions = slice(row, row + count), np.arange(start, start + count)
        graph.arrays[IDS if IDS in graph.arrays else EMBEDDED][0, rows] = given
        if POSITIONS in graph.arrays:
            graph.arrays[POSITIONS][0, rows] = positions
        place, beside = slot * self.context, graph.sizes.positions + row
        for name, window in graph.windows.items():
            mask = graph.arrays[name][0, 0, rows]
            mask[:, : graph.sizes.positions] = HIDDEN
            fill_mask(mask[:, place : place + start], positions, np.arange(start), window)
            fill_mask(mask[:, beside : beside + count], positions, positions, window)

    def _run(self, graph: StaticGraph) -> dict[str, Array]:
        if graph not in self._ran:
            self._ran.append(graph)
        return graph.run()

    def _keep(self, made: Mapping[str, Array], row: int, slot: int, start: int, count: int) -> None:
        """Put keys and values of a call where they belong."""
        place = slot * self.context + start
        for name, kept in self._kept.items():
            kept[:, :, place : place + count] = made[name.replace(PAST, PRESENT, 1)][:, :, row : row + count]


def _placed(spans: Sequence[Span]) -> Iterator[tuple[Span, int, int]]:
    """The spans of one token, with the places of their tokens and rows in the step."""
    at = row = 0
    for span in spans:
        if span.count == 1:
            yield span, at, row
        at += span.count
        row += span.rows


def _pieces(start: int, end: int, size: int) -> Iterator[tuple[int, int]]:
    """The positions from ``start`` to ``end``, divided at multiples of ``size``."""
    while start < end:
        stop = min(end, (start // size + 1) * size)
        yield start, stop
        start = stop


__all__ = ["CHUNK", "PackedDecoder"]
