"""The ONNX Runtime executor.

**Decoders.** The stage graph (see ``ruvcompile/lower/onnxruntime``) holds ``GroupQueryAttention`` nodes
whose past and present are bound to one buffer per layer, ``[slots, heads, context, head_size]``: the key/value
space of all sequences, allocated once, written in place. A sequence's slot is an index into it, its length is
what ``seqlens_k`` says; a rewind is a smaller position.

One step is split into calls:

* spans of one token whose slots are neighbours form one call, a *window*: ``[rows, 1, ...]``. The buffers of
  a window are a contiguous part of the key/value space, so its bindings are made once and kept.
* a span of several tokens is a call of its own, ``[1, count, ...]``: the kernel takes more than one new token
  per row only with batch 1. Of a few lengths it is two (``chunked``).

Which positions are computed one at a time and which among several is the caller's choice and changes the last
digits of a result (a matrix-vector and a matrix-matrix kernel add up in different orders); company and chunk
size do not.

**Graphs** are in ``graph.py``, decoders that are run as they were exported in ``stateful.py``.

Every session runs with explicit options (``sessions.py``). A decoder's threads spin only while a call runs
(``force_spinning_stop``), so that a waiting stage leaves its cores alone. A graph's never do: several stages of one
process in series would take the cores from each other, and its operators are long enough to wake up for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.executors import Array, Span
from ruvrun.executors.chunked import calls_of
from ruvrun.executors.graph import OnnxGraph
from ruvrun.executors.pages import use_huge_pages, zeroed
from ruvrun.executors.sessions import open_session
from ruvrun.executors.stateful import StatefulDecoder, load_stateful

SEQLENS = "seqlens_k"
TOTAL = "total_sequence_length"
ROWS = "logit_rows"
LOGITS = "logits"
POSITIONS = "position_ids"
_WINDOWS_KEPT = 256
WORTH_HUGE_PAGES = 8 << 20


@dataclass
class _Call:
    """One bound call: its buffers, which are filled and read in place, and the binding that names them."""

    binding: Any
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    seqlens: Array
    total: Array
    rows: Array
    positions: Array


class OnnxDecoder:
    """A decoder stage with in-place key/value buffers; a ``DecoderExecutor``."""

    def __init__(self, session: Any, spec: StageSpec, *, context: int, slots: int) -> None:
        assert spec.kv is not None
        self.slots = slots
        self.context = context
        self._session = session
        self._spec = spec
        shape = (slots, spec.kv.heads, context, spec.kv.head_size)
        names = [value.name for value in session.get_inputs()]
        past = [name for name in names if name.startswith(("past_key.", "past_value."))]
        # Most stages have no use for positions: attention knows them by lengths.
        self._positioned = POSITIONS in names
        length = math.prod(shape) * np.dtype(spec.kv.dtype).itemsize
        space = zeroed(len(past) * length).reshape(len(past), length)
        self._kv = {name: space[index].view(spec.kv.dtype).reshape(shape) for index, name in enumerate(past)}
        self._inputs = {tensor.name: tensor for tensor in spec.inputs}
        self._outputs = {tensor.name: tensor for tensor in spec.outputs}
        self._windows: dict[tuple[int, int], _Call] = {}

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; see ``DecoderExecutor.step``."""
        if len(spans) == 1 and spans[0].count == 1:
            return self._window(spans, tensors)
        results: list[dict[str, Array]] = []
        start = 0
        for group in _calls(spans):
            count = sum(span.count for span in group)
            part = {name: tensors[name][start : start + count] for name in self._inputs}
            results.append(self._window(group, part) if group[0].count == 1 else self._chunk(group[0], part))
            start += count
        if len(results) == 1:
            return results[0]
        return {name: np.concatenate([result[name] for result in results]) for name in self._outputs}

    def copy(self, source: int, target: int, count: int) -> None:
        """See ``CopyingExecutor.copy``."""
        if source != target:
            for buffer in self._kv.values():
                buffer[target, :, :count] = buffer[source, :, :count]

    def occupy(self, slots: int, depth: int) -> None:
        """Fill the first ``depth`` positions of the first ``slots`` with something, as if sequences were there.

        For measuring: how long a step takes depends on what lies in memory, not on what it says.
        """
        for buffer in self._kv.values():
            buffer[:slots, :, :depth] = 0.01

    def _window(self, group: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        key = (group[0].slot, len(group))
        call = self._windows.get(key)
        if call is None:
            if len(self._windows) >= _WINDOWS_KEPT:
                self._windows.pop(next(iter(self._windows)))
            call = self._windows[key] = self._make_call(group[0].slot, len(group), 1, len(group))
        furthest, wanted = 0, []
        for row, span in enumerate(group):
            call.seqlens[row] = call.positions[row] = span.position
            furthest = max(furthest, span.position)
            if span.rows:
                wanted.append(row)
        call.total[0] = furthest + 1
        self._run(call, tensors)
        return self._results(call, wanted if len(wanted) < len(group) else None)

    def _chunk(self, span: Span, tensors: Mapping[str, Array]) -> dict[str, Array]:
        call = self._make_call(span.slot, 1, span.count, span.rows)
        call.seqlens[0] = span.position + span.count - 1
        call.total[0] = span.position + span.count
        call.rows[:] = np.arange(span.count - span.rows, span.count)
        call.positions[:] = np.arange(span.position, span.position + span.count)
        self._run(call, tensors)
        return self._results(call, None)

    def _run(self, call: _Call, tensors: Mapping[str, Array]) -> None:
        for name, buffer in call.inputs.items():
            buffer.reshape(-1)[:] = tensors[name].reshape(-1)
        self._session.run_with_iobinding(call.binding)

    def _results(self, call: _Call, wanted: list[int] | None) -> dict[str, Array]:
        packed = {}
        for name, array in call.outputs.items():
            if name != LOGITS:
                packed[name] = array.reshape(-1, *array.shape[2:])
            else:
                packed[name] = array if wanted is None else array[wanted]
        return packed

    def _make_call(self, slot: int, batch: int, count: int, rows: int) -> _Call:
        """Make the buffers and the binding of a call over ``batch`` slots from ``slot`` on, ``count`` tokens each."""
        binding = self._session.io_binding()
        symbols = {"tokens": (batch, count)}
        inputs = {name: np.zeros(_shape(t.shape, symbols), t.dtype) for name, t in self._inputs.items()}
        outputs = {
            name: np.zeros(_shape(t.shape, symbols), t.dtype) for name, t in self._outputs.items() if name != LOGITS
        }
        call = _Call(
            binding,
            inputs,
            outputs,
            np.zeros(batch, np.int32),
            np.zeros(1, np.int32),
            np.arange(rows, dtype=np.int64),
            np.zeros((batch, count), np.int64),
        )
        bound = {**inputs, SEQLENS: call.seqlens, TOTAL: call.total}
        if self._positioned:
            bound[POSITIONS] = call.positions
        if LOGITS in self._outputs:
            outputs[LOGITS] = np.zeros((rows, self._spec.vocab), np.float32)
            bound[ROWS] = call.rows
        for name, array in bound.items():
            _bind(binding.bind_input, name, array)
        for name, array in outputs.items():
            _bind(binding.bind_output, name, array)
        for name, buffer in self._kv.items():
            window = buffer[slot : slot + batch]
            _bind(binding.bind_input, name, window)
            _bind(binding.bind_output, name.replace("past_", "present_", 1), window)
        return call


def load_decoder(
    directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int
) -> OnnxDecoder | StatefulDecoder:
    """Load a decoder stage; weights are mapped from their files and packed by the kernels."""
    if spec.exported:
        return load_stateful(directory, spec, context=context, slots=slots, threads=threads)
    session = open_session(directory / spec.model, threads=threads)
    use_huge_pages()  # before there is key/value space, which is mostly empty
    return OnnxDecoder(session, spec, context=context, slots=slots)


def load_graph(directory: Path, spec: StageSpec, *, threads: int) -> OnnxGraph:
    """Load a stage of a graph."""
    session = open_session(directory / spec.model, threads=threads, spinning=False)
    if sum(file.bytes for file in spec.files) >= WORTH_HUGE_PAGES:
        use_huge_pages()
    return OnnxGraph(session)


def _calls(spans: Sequence[Span]) -> Iterator[Sequence[Span]]:
    """Split a step into calls, in order: runs of one-token spans in neighbouring slots, and each longer span."""
    start = 0
    for end in range(1, len(spans) + 1):
        last = spans[end - 1]
        joins = end < len(spans) and last.count == 1 and spans[end].count == 1 and spans[end].slot == last.slot + 1
        if not joins:
            if last.count == 1:
                yield spans[start:end]
            else:
                for span in calls_of(last):
                    yield [span]
            start = end


def _shape(shape: Sequence[int | str], symbols: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    sizes: list[int] = []
    for size in shape:
        sizes.extend(symbols[size] if isinstance(size, str) else [size])
    return tuple(sizes)


def _bind(bind: Any, name: str, array: Array) -> None:
    assert array.flags.c_contiguous
    bind(name, "cpu", 0, array.dtype.type, array.shape, array.ctypes.data)
