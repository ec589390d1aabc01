"""A decoder stage on OpenVINO's paged attention, driven by small arrays.

For the sequences of a step, with ``tokens`` new positions together::

    input_ids or inputs_embeds  [tokens, ...]     what comes in, all sequences one behind the other
    position_ids                [tokens]          where each token stands in its sequence
    past_lens                   [sequences]       how many positions of a sequence count; a rewind is a smaller number
    subsequence_begins          [sequences + 1]   which of the tokens are whose
    block_indices               [blocks]          the blocks of each sequence, one behind the other
    block_indices_begins        [sequences + 1]   which of these are whose
    max_context_len             []                the longest sequence after this step
    logit_rows                  [rows]            on the last stage: which of the tokens logits are wanted for
    key_cache.i, value_cache.i  [blocks, heads, 32, size]    the pool, written in place

A step is to cost no more than its kernels: for every number of sequences, tokens and rows the arrays are made once and
filled in place, and the request is told of tensors only when they are others than in the step before. A sequence's
table is as long as the context needs, whether it has all of these blocks yet or not: those that it has not are the last
one of the pool, which nobody reads. So the table changes only with the slots, and where a block was granted.

Prompts that begin alike share full blocks, and nothing is copied (``ruvrun.engine.blocks``). Only in a pipeline that
has slots, because another stage of it is on ONNX Runtime, they are copied: 1,024 positions of SmolLM2 in eight bits in
0.2 % of the time that computing them takes, in 1 % where the memory is written for the first time.

Company must not change a result, and one of OpenVINO's kernels does not care: a product of four-bit weights with a
single row of activations that are not quantised adds up in another order than one with several. So the first thing
a decoder is asked is whether a row alone is, bit by bit, the row in company (``settle``). Where it is not, there is
never a row alone: a lone token is given a companion, in a block of its own at the end of the pool, and a lone row of
logits is computed twice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import openvino as ov

from ruvrun.backends import KV_TYPES
from ruvrun.bundle import StageSpec
from ruvrun.elements import Array
from ruvrun.executors import Span
from ruvrun.executors.openvino.kernels import Ran, kernels
from ruvrun.executors.openvino.ports import EMBEDDED, IDS, LOGITS, POSITIONS, ROWS
from ruvrun.executors.pages import zeroed
from ruvrun.manifest.blocks import BLOCK, pool_of, sequences_of

_CALLS_KEPT, _MOST_KEPT = 128, 32
_TRIED = 4
"""Positions at which a row alone is held against one in company: where they differ, most values do."""


@dataclass
class _Call:
    """The arrays of a step of one shape, and the tensors over them by name."""

    arrays: dict[str, Array]
    tensors: dict[str, Any]
    slots: list[int]
    granted: int = -1


class PagedDecoder:
    """A decoder stage with a pool of blocks; a ``PooledExecutor``.

    Args:
        compiled: its model.
        spec: its ``bundle.toml``.
        context: positions per slot.
        slots: sequences of so many positions at a time.
        constants: what the model was read with; kept as long as the decoder.
    """

    def __init__(self, compiled: Any, spec: StageSpec, *, context: int, slots: int, constants: Array) -> None:
        self._constants = constants  # what was compiled reads some of them where they are
        self.slots = slots
        self.context = context
        self.pool, self.sequences = pool_of(context, slots), sequences_of(slots)
        self._blocks = -(-context // BLOCK)
        self._spec = spec
        self._request = compiled.create_infer_request()
        self._ports = {port.get_any_name(): port for port in compiled.inputs}
        caches = {name: port for name, port in self._ports.items() if is_cache(name)}
        # One block more, for the companion.
        shapes = {name: (self.pool.blocks + 1, *_sizes(port)) for name, port in caches.items()}
        types = {name: np.dtype(KV_TYPES[port.get_element_type().get_type_name()]) for name, port in caches.items()}
        lengths = {name: math.prod(shape) * types[name].itemsize for name, shape in shapes.items()}
        space, at = zeroed(sum(lengths.values())), 0
        self._kv: dict[str, Array] = {}
        for name, length in lengths.items():
            self._kv[name] = space[at : at + length].view(types[name]).reshape(shapes[name])
            self._request.set_tensor(name, ov.Tensor(self._kv[name], shared_memory=True))
            at += length
        self._source = IDS if IDS in self._ports else EMBEDDED
        self._table = np.full((self.sequences + 1, self._blocks), self.pool.blocks, np.int32)
        self._table[:slots] = np.arange(self.pool.blocks, dtype=np.int32).reshape(slots, self._blocks)
        self._granted = 0
        self._companion = Span(self.sequences, 0, 1, 0)
        self._least = 1
        self._calls: dict[tuple[int, int, int], _Call] = {}
        self._bound: _Call | None = None

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step; see ``DecoderExecutor.step``."""
        tokens = rows = 0
        for span in spans:
            tokens += span.count
            rows += span.rows
        wanted = (tokens, rows)
        if tokens < self._least:
            spans = [*spans, self._companion]
            tokens += 1
        if rows:
            rows = max(rows, self._least)
        key = (len(spans), tokens, rows)
        call = self._calls.get(key)
        if call is None:
            call = self._make(*key)
            if tokens <= _MOST_KEPT:  # the chunks of prompts are of many lengths, and large
                if len(self._calls) >= _CALLS_KEPT:
                    self._calls.pop(next(iter(self._calls)))
                self._calls[key] = call
        self._fill(call, spans, wanted[1])
        (source,) = self._spec.inputs
        given = tensors[source.name].reshape(-1)
        call.arrays[self._source].reshape(-1)[: given.size] = given
        if call is not self._bound:
            for name, tensor in call.tensors.items():
                self._request.set_tensor(name, tensor)
            self._bound = call
        self._request.infer(share_outputs=True)
        found = {}
        for number, tensor in enumerate(self._spec.outputs):
            array = self._request.get_output_tensor(number).data
            made, asked = (rows, wanted[1]) if tensor.name == LOGITS else (tokens, wanted[0])
            found[tensor.name] = array.reshape(made, *tensor.shape[1:])[:asked]
        return found

    def copy(self, source: int, target: int, count: int) -> None:
        """See ``CopyingExecutor.copy``; of the last block it is more than that, which nobody sees."""
        if source != target:
            blocks = -(-count // BLOCK)
            for pool in self._kv.values():
                pool[self._table[target][:blocks]] = pool[self._table[source][:blocks]]

    def grant(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        """See ``PooledExecutor.grant``."""
        row = self._table[slot]
        row[first : first + len(blocks)] = blocks
        row[first + len(blocks) :] = self.pool.blocks
        self._granted += 1

    def occupy(self, slots: int, depth: int) -> None:
        """As ``OnnxDecoder.occupy``."""
        for pool in self._kv.values():
            pool.view(np.uint8)[: slots * self._blocks] = 0x3C  # a small number in every type
        del depth  # a block is filled or not

    def settle(self) -> None:
        """Run some rows alone and in company, and see whether they are equal; a decoder is warm afterwards.

        Nothing of it is ever read by a sequence, which writes before it reads.
        """
        (source,) = self._spec.inputs
        shape = (min(_TRIED, self.context), *(size for size in source.shape[1:] if isinstance(size, int)))
        # Small, so that what the layers add is not lost beside what came in.
        some = (np.random.default_rng(0).standard_normal(shape) * 1e-3).astype(source.dtype)
        if source.name == IDS:
            some = np.arange(len(some)) % max(1, self._spec.vocab)

        def run() -> list[bytes]:
            steps = []
            for at in range(len(some)):
                made = self.step([Span(0, at, 1, 1)], {source.name: some[at : at + 1]})
                steps.append([array.copy() for array in made.values()])
            left = [pool[0] for pool in self._kv.values()]  # the first block of the first slot
            return [array.tobytes() for array in (*left, *(array for made in steps for array in made))]

        alone = run()
        self._least = 2
        if run() == alone:
            self._least = 1

    def kernels(self) -> list[Ran]:
        """What ran in the last step, where the stage was opened to tell."""
        return kernels(self._request)

    def _fill(self, call: _Call, spans: Sequence[Span], rows: int) -> None:
        arrays = call.arrays
        slots = [span.slot for span in spans]
        if "past_lens" in arrays:
            past, positions, begins = arrays["past_lens"], arrays[POSITIONS], arrays["subsequence_begins"]
            at = longest = 0
            for number, span in enumerate(spans):
                past[number] = span.position
                end = span.position + span.count
                if span.count == 1:
                    positions[at] = span.position
                else:
                    positions[at : at + span.count] = np.arange(span.position, end)
                at += span.count
                begins[number + 1] = at
                longest = max(longest, end)
            arrays["max_context_len"][...] = longest
            if slots != call.slots or call.granted != self._granted:
                arrays["block_indices"][:] = self._table[slots].reshape(-1)
                call.slots, call.granted = slots, self._granted
        if ROWS in arrays:
            wanted, at, row = arrays[ROWS], 0, 0
            for span in spans:
                at += span.count
                if span.rows == 1:
                    wanted[row] = at - 1
                elif span.rows:
                    wanted[row : row + span.rows] = np.arange(at - span.rows, at)
                row += span.rows
            wanted[rows:] = wanted[0] if rows else 0

    def _make(self, sequences: int, tokens: int, rows: int) -> _Call:
        """The arrays of a step of so many sequences, tokens and rows."""
        (source,) = self._spec.inputs
        port = self._ports[self._source]
        inner = [size for size in source.shape[1:] if isinstance(size, int)]
        # What is not paged keeps an axis for the batch in front.
        front = [1] * (port.get_partial_shape().rank.get_length() - 1 - len(inner))
        wanted = {
            self._source: np.zeros((*front, tokens, *inner), source.dtype),
            POSITIONS: np.zeros(tokens, np.int64),
            "past_lens": np.zeros(sequences, np.int32),
            "subsequence_begins": np.zeros(sequences + 1, np.int32),
            "block_indices": np.zeros(sequences * self._blocks, np.int32),
            "block_indices_begins": np.arange(sequences + 1, dtype=np.int32) * self._blocks,
            "max_context_len": np.zeros((), np.int32),
            ROWS: np.arange(rows, dtype=np.int64),
        }
        arrays = {name: array for name, array in wanted.items() if name in self._ports}
        return _Call(arrays, {name: ov.Tensor(array, shared_memory=True) for name, array in arrays.items()}, [])


def is_cache(name: str) -> bool:
    """Whether an input is a pool of keys or of values."""
    return name.startswith(("key_cache.", "value_cache."))


def _sizes(port: Any) -> list[int]:
    """Sizes of a block, which only the compiled model knows."""
    return [size.get_length() for size in list(port.get_partial_shape())[1:]]


__all__ = ["PagedDecoder", "is_cache"]
