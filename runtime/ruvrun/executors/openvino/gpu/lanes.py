"""A decoder stage for a GPU: keys and values in variables, and a mask that takes out what does not count.

A stage (see ``ruvcompile/lower/openvino/gpu.py``) keeps keys and values itself: every call adds those of its tokens
behind what is there. What is there is a *lane*, and a sequence has one: it stands at *physical* places in the order of
the calls, while the step plan speaks of *logical* positions. The two part when a sequence goes back, as after guesses
that were rejected: what lies behind the new position is not cut off, which would move all that is kept (about 48 ms
where that was measured), but becomes a *hole* that no query sees, which costs nothing. So for each place the lane knows
the position, or that there is none, and makes of that the mask of each call (``masks``).

Holes take room. A lane has as many places as the context has positions, and when the next call does not fit any more,
the lane is *compacted*: what is in use is copied together, once. The head knows nothing of it.

**A lane for each sequence**, not a row of one batch: rows of a batch have one length together, so whoever joins, leaves
or goes back would leave holes for everybody, and company could change a result. The price is that weights are read once
for each sequence; calls of a step are handed over together, so that a device never waits for the next one.

With one lane each, a position computed alone and one in company are the same bits. How a prompt was divided, and holes,
change the last digits: attention adds up what it sees in an order that depends on where it lies. So prompts that begin
alike are each computed from the beginning (this is no ``CopyingExecutor``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.elements import Array
from ruvrun.errors import IntegrityError
from ruvrun.executors import Span
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.kernels import Ran, kernels
from ruvrun.executors.openvino.masks import NOTHING, fill_mask, window_masks
from ruvrun.executors.openvino.ports import BEAMS, EMBEDDED, IDS, LOGITS, POSITIONS, ROWS


@dataclass
class Lane:
    """Keys and values of one sequence: a request, whose variables they are, and what lies where in them.

    ``places[:filled]`` are the positions of what is there, ``NOTHING`` for a hole.
    """

    request: Any
    places: Array
    filled: int = 0

    def rewind(self, position: int) -> None:
        """Let nothing from ``position`` on count any more."""
        if position == 0:
            self.request.reset_state()
            self.filled = 0
            return
        places = self.places[: self.filled]
        places[places >= position] = NOTHING
        if np.count_nonzero(places != NOTHING) != position:
            raise IntegrityError(
                "state-missing",
                f"a sequence goes on at position {position}, and not all before it is here",
                hint="all nodes must run the same build and version",
            )

    def add(self, position: int, count: int) -> None:
        """Make room for ``count`` positions, and take it."""
        if self.filled + count > len(self.places):
            self._compact()
        self.places[self.filled : self.filled + count] = np.arange(position, position + count)
        self.filled += count

    def _compact(self) -> None:
        kept = np.flatnonzero(self.places[: self.filled] != NOTHING)
        for variable in self.request.query_state():
            variable.state = ov.Tensor(np.ascontiguousarray(variable.state.data[:, :, kept]))
        self.places[: len(kept)] = self.places[kept]
        self.filled = len(kept)


class LaneDecoder:
    """A decoder stage with a lane for each slot; a ``DecoderExecutor``.

    Args:
        compiled: the stage's graph.
        spec: its ``bundle.toml``.
        shelf: where the graph is kept for the next start.
        context: positions per sequence, and places per lane.
        slots: sequences at a time.
    """

    ends_where_it_was = True  # as ``StatefulDecoder``'s

    def __init__(self, compiled: Any, spec: StageSpec, shelf: Shelf, *, context: int, slots: int) -> None:
        self.shelf = shelf
        self.slots = slots
        self.context = context
        self._spec = spec
        self._compiled = compiled
        self._names = {port.get_any_name() for port in compiled.inputs}
        self._windows = window_masks(self._names)
        self._source = IDS if IDS in self._names else EMBEDDED
        self._lanes: dict[int, Lane] = {}
        self._used: list[Lane] = []

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; see ``DecoderExecutor.step``."""
        (source,) = self._spec.inputs
        given, at = tensors[source.name], 0
        self._used = []
        for span in spans:
            lane = self._lane(span.slot)
            lane.request.start_async(self._inputs(lane, span, given[at : at + span.count]), share_inputs=False)
            self._used.append(lane)
            at += span.count
        for lane in self._used:
            lane.request.wait()
        results = [self._results(lane, span) for lane, span in zip(self._used, spans, strict=True)]
        if len(results) == 1:
            return results[0]
        return {tensor.name: np.concatenate([each[tensor.name] for each in results]) for tensor in self._spec.outputs}

    def occupy(self, slots: int, depth: int) -> None:
        """As ``OnnxDecoder.occupy``."""
        kv = self._spec.kv
        assert kv is not None
        for slot in range(slots):
            lane = self._lane(slot)
            lane.rewind(0)
            for variable in lane.request.query_state():
                shape = (1, kv.heads, depth, kv.head_size)
                variable.state = ov.Tensor(np.full(shape, 0.01, variable.state.data.dtype))
            lane.add(0, depth)

    def kernels(self) -> list[Ran]:
        """What ran in the last step, where the stage was opened to tell."""
        return kernels(*(lane.request for lane in self._used))

    def settle(self) -> None:
        """Run once, so that the device's kernels are there."""
        (source,) = self._spec.inputs
        some = np.zeros((1, *(size for size in source.shape[1:] if isinstance(size, int))), source.dtype)
        self.step([Span(0, 0, 1, 1)], {source.name: some})

    def _lane(self, slot: int) -> Lane:
        """The lane of a slot, which is made when it is first used: it has memory of its own for activations, too."""
        if slot not in self._lanes:
            self._lanes[slot] = Lane(self._compiled.create_infer_request(), np.full(self.context, NOTHING, np.int64))
        return self._lanes[slot]

    def _inputs(self, lane: Lane, span: Span, given: Array) -> dict[str, Array]:
        lane.rewind(span.position)
        lane.add(span.position, span.count)
        positions = np.arange(span.position, span.position + span.count, dtype=np.int64)
        places = lane.places[: lane.filled]
        made = {self._source: given[None]}
        for name, window in self._windows.items():
            mask = np.empty((1, 1, span.count, lane.filled), np.float32)
            fill_mask(mask[0, 0], positions, places, window)
            made[name] = mask
        # A device is asked for one row at least: not all take an axis of nothing.
        rows = np.arange(span.count - max(span.rows, 1), span.count, dtype=np.int64)
        asked: dict[str, Array] = {POSITIONS: positions[None], BEAMS: np.zeros(1, np.int32), ROWS: rows}
        return made | {name: array for name, array in asked.items() if name in self._names}

    def _results(self, lane: Lane, span: Span) -> dict[str, Array]:
        found = {}
        for number, tensor in enumerate(self._spec.outputs):
            array = lane.request.get_output_tensor(number).data
            if tensor.name == LOGITS:
                found[tensor.name] = array.reshape(-1, *tensor.shape[1:])[: span.rows]
            else:
                found[tensor.name] = array.reshape(span.count, *tensor.shape[1:])
        return found
