"""A decoder stage that is run as it was exported, its state in plain tensors.

Where the compiler could not bring a decoder into its own form, the stage's graph still takes what earlier calls left
(``past``) and gives what the next call needs (``present``), as the exporter drew it. Then the state is kept here: per
slot and pair the last ``present``. A call feeds the part of it that lies before the call's first position, so that a
rewind is a shorter piece; a sequence's first call feeds nothing.

Every sequence is a call of its own, of batch 1: company and neighbours cannot change a result. It is slower than
attention with buffers in place, since the state is copied with every token.

What else the graph asks for follows from positions: ``position_ids`` and ``cache_position`` are those of the call's
tokens, and ``attention_mask`` is all ones over everything seen, for there is no padding.

The session fuses nothing over more than a few nodes (``ORT_ENABLE_BASIC``): a pattern that a cut goes through would be
computed by other kernels on one side than in the uncut model, and the last digits would depend on the cut.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.errors import IntegrityError
from ruvrun.executors import Array, Span
from ruvrun.executors.chunked import calls_of
from ruvrun.executors.sessions import open_session

POSITIONS, MASK, CACHE_POSITION = "position_ids", "attention_mask", "cache_position"
LOGITS = "logits"


class StatefulDecoder:
    """A decoder stage with explicit state; a ``DecoderExecutor``.

    Args:
        session: the stage's graph.
        spec: its ``bundle.toml``; ``state`` names the pairs.
        context: positions per slot.
        slots: sequences at a time.
    """

    # What lies behind a step is forgotten, so it is occupied anew before another one is measured.
    ends_where_it_was = True

    def __init__(self, session: Any, spec: StageSpec, *, context: int, slots: int) -> None:
        self.slots = slots
        self.context = context
        self._session = session
        self._spec = spec
        self._asked = {value.name for value in session.get_inputs()}
        self._wire = [tensor.name for tensor in spec.inputs]
        self._leaving = [tensor.name for tensor in spec.outputs]
        self._outputs = [*self._leaving, *(pair.present for pair in spec.state)]
        self._kept: list[dict[str, Array]] = [{} for _ in range(slots)]

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; see ``DecoderExecutor.step``."""
        results: list[dict[str, Array]] = []
        start = 0
        for span in itertools.chain.from_iterable(map(calls_of, spans)):
            part = {name: tensors[name][start : start + span.count][None] for name in self._wire}
            results.append(self._call(span, part))
            start += span.count
        if len(results) == 1:
            return results[0]
        return {name: np.concatenate([result[name] for result in results]) for name in self._leaving}

    def copy(self, source: int, target: int, count: int) -> None:
        """See ``CopyingExecutor.copy``."""
        self._kept[target] = {name: array[:, :, :count].copy() for name, array in self._kept[source].items()}

    def occupy(self, slots: int, depth: int) -> None:
        """As ``OnnxDecoder.occupy``."""
        for kept in self._kept[:slots]:
            for pair in self._spec.state:
                kept[pair.past] = np.full((1, pair.heads, depth, pair.head_size), 0.01, pair.dtype)

    def _call(self, span: Span, tensors: dict[str, Array]) -> dict[str, Array]:
        kept = self._kept[span.slot]
        found = self._session.run(self._outputs, {**tensors, **self._filled(span), **self._past(span, kept)})
        made = dict(zip(self._outputs, found, strict=True))
        for pair in self._spec.state:
            kept[pair.past] = made.pop(pair.present)
        if LOGITS in made:
            made[LOGITS] = made[LOGITS][0, span.count - span.rows :].astype(np.float32, copy=False)
        return {name: array if name == LOGITS else array[0] for name, array in made.items()}

    def _filled(self, span: Span) -> dict[str, Array]:
        end = span.position + span.count
        positions = np.arange(span.position, end, dtype=np.int64)
        made = {POSITIONS: positions[None], CACHE_POSITION: positions, MASK: np.ones((1, end), np.int64)}
        return {name: array for name, array in made.items() if name in self._asked}

    def _past(self, span: Span, kept: Mapping[str, Array]) -> dict[str, Array]:
        """The state before the span's first position."""
        past = {}
        for pair in self._spec.state:
            if span.position == 0:
                past[pair.past] = np.zeros((1, pair.heads, 0, pair.head_size), pair.dtype)
                continue
            array = kept.get(pair.past)
            if array is None or array.shape[2] < span.position:
                raise IntegrityError(
                    "state-missing",
                    f"slot {span.slot} holds no state before position {span.position}",
                    hint="all nodes must run the same build and version",
                )
            past[pair.past] = np.ascontiguousarray(array[:, :, : span.position])
        return past


def load_stateful(directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> StatefulDecoder:
    """Load a decoder stage with explicit state."""
    session = open_session(directory / spec.model, threads=threads, fused=False)
    return StatefulDecoder(session, spec, context=context, slots=slots)
