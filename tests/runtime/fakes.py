"""A decoder that computes nothing useful, but whose every token depends on all that may go wrong.

A layer's state at a position is a hash of its state at the position before, of what comes in at this position, and
of the mode (alone, or among several tokens). So a wrong slot, position, order, mode or neighbour, once, changes
all later tokens of the sequence. The layers are split over one to four stages, and the result must not
depend on how. The last layer also mixes in ``echo``, the token itself, which stage 0 sends and all others relay.

``plain_tokens`` is the same model as one would write it down: a loop over layers and positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import numpy as np

from ruvrun import frames
from ruvrun.bundle import StageSpec
from ruvrun.engine import Request
from ruvrun.engine.sampling import Sampler, pick, told
from ruvrun.executors import Array, Span
from ruvrun.manifest import Tensor
from ruvrun.pipeline.worker import Worker

LAYERS = 4
VOCAB = 61
CUTS = {1: (0, 4), 2: (0, 1, 4), 3: (0, 1, 3, 4), 4: (0, 1, 2, 3, 4)}
"""Where the layers are cut into so many stages."""

_MASK = 2**64 - 1


def mix(*values: int) -> int:
    """A 63-bit hash of small or large integers, in order."""
    state = 0x9E3779B97F4A7C15
    for value in values:
        state = ((state ^ value) * 0xBF58476D1CE4E5B9 + 0x94D049BB133111EB) & _MASK
        state ^= state >> 29
    return state >> 1


def logits_of(state: int, echo: int) -> np.ndarray:
    """``[VOCAB]`` float32, of about the spread that a model's have."""
    return np.array([mix(state, echo, token) % 1000 / 100 for token in range(VOCAB)], np.float32)


class FakeDecoder:
    """Layers ``first`` to ``last`` (not included) of the fake model; a ``DecoderExecutor`` that trusts nobody."""

    def __init__(self, first: int, last: int, *, slots: int, context: int) -> None:
        self.slots = slots
        self.context = context
        self.layers = range(first, last)
        self.windows: list[tuple[int, ...]] = []
        self.copied: list[tuple[int, int, int]] = []
        self._states: list[list[list[int]]] = [[[] for _ in self.layers] for _ in range(slots)]

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        assert spans
        assert [span.slot for span in spans] == sorted({span.slot for span in spans}), "slots must ascend"
        assert sum(span.count > 1 for span in spans) <= 1, "of two chunks one must wait"
        tokens = sum(span.count for span in spans)
        source = tensors["input_ids"] if self.layers.start == 0 else tensors[f"hidden.{self.layers.start}"]
        assert source.shape == (tokens,)
        assert source.dtype == np.int64
        self.windows.append(tuple(span.slot for span in spans))
        hidden: list[int] = []
        ends = []
        for span in spans:
            values = [int(value) for value in source[len(hidden) : len(hidden) + span.count]]
            hidden += self._span(span, values)
            ends += [len(hidden) - 1] * span.rows
        if self.layers.stop == LAYERS:
            echo = source if self.layers.start == 0 else tensors["echo"]
            rows = [logits_of(hidden[end], int(echo[end])) for end in ends]
            return {"logits": np.array(rows, np.float32).reshape(len(rows), VOCAB)}
        outputs = {f"hidden.{self.layers.stop}": np.array(hidden, np.int64)}
        if self.layers.start == 0:
            outputs["echo"] = source.copy()
        return outputs

    def copy(self, source: int, target: int, count: int) -> None:
        assert 0 <= target < self.slots
        assert all(len(states) >= count for states in self._states[source]), "there is not so much to copy"
        self.copied.append((source, target, count))
        self._states[target] = [states[:count] for states in self._states[source]]

    def _span(self, span: Span, values: list[int]) -> list[int]:
        assert 0 <= span.slot < self.slots
        assert span.position + span.count <= self.context
        states = self._states[span.slot]
        if span.position == 0:
            for layer in states:
                layer.clear()
        for number, states_of_layer in zip(self.layers, states, strict=True):
            assert len(states_of_layer) == span.position, "a position was left out or comes twice"
            for index, value in enumerate(values):
                before = states_of_layer[-1] if states_of_layer else 0
                values[index] = mix(number, before, value, int(span.count == 1))
                states_of_layer.append(values[index])
        return values


def fake_spec(first: int, last: int) -> StageSpec:
    """The bundle.toml of a ``FakeDecoder``."""
    ids = Tensor(name="input_ids", dtype="int64", shape=["tokens"])
    echo = Tensor(name="echo", dtype="int64", shape=["tokens"])
    end = last == LAYERS
    before = Tensor(name=f"hidden.{first}", dtype="int64", shape=["tokens"])
    after = Tensor(name=f"hidden.{last}", dtype="int64", shape=["tokens"])
    logits = Tensor(name="logits", dtype="float32", shape=["rows", VOCAB])
    return StageSpec(
        kind="decoder",
        backend="fake",
        target="fake",
        model="none",
        first=first == 0,
        last=end,
        inputs=[ids] if first == 0 else ([before, echo] if end else [before]),
        outputs=[logits] if end else ([after, echo] if first == 0 else [after]),
        forward=[] if end else [after.name, "echo"],
        files=[],
        vocab=VOCAB,
    )


def fake_workers(stages: int, *, slots: int, context: int) -> list[Worker]:
    """The fake model in one to four stages of unequal size."""
    return [
        Worker(FakeDecoder(first, last, slots=slots, context=context), fake_spec(first, last))
        for first, last in itertools.pairwise(CUTS[stages])
    ]


def plain_tokens(request: Request, context: int) -> list[int]:
    """What the fake model says to ``request``, computed alone and in one piece."""
    states = [0] * LAYERS

    def feed(token: int, single: bool) -> int:
        value = token
        for layer in range(LAYERS):
            value = states[layer] = mix(layer, states[layer], value, int(single))
        return value

    for token in request.prompt:
        state = feed(token, single=len(request.prompt) == 1)
    tokens = list(request.prompt)
    while True:
        row = logits_of(state, tokens[-1])
        before = told(request.sampling, request.prompt, tokens[len(request.prompt) :])
        tokens += pick(row[None], [Sampler(request.sampling, VOCAB, *before)], [len(tokens)])
        generated = len(tokens) - len(request.prompt)
        if tokens[-1] in request.eos or generated == request.max_tokens or len(tokens) == context:
            return tokens[len(request.prompt) :]
        state = feed(tokens[-1], single=True)


def greedy(seed: int = 0) -> frames.Sampling:
    return frames.Sampling(0.0, 1.0, seed)
