"""Is this graph a decoder, and which of its inputs and outputs are its state?

A decoder that somebody exported with its key/value state takes, besides the tokens, what earlier calls left (*past*)
and gives back what the next call needs (*present*). No file says which belongs to which; the names do, and every
exporter has its own. What they agree on is enough:

1. A state input's name holds ``past``, its output's ``present``; both say ``key`` or ``value``, and one number, the
   layer. ``past_key_values.3.key`` and ``present.3.key``, ``past_key.3`` and ``present_key.3`` are such pairs.
2. Tokens come in as ``input_ids`` and logits leave as ``logits``.
3. What else may come in is known by name, and a stage can fill it in from positions alone: ``position_ids``,
   ``cache_position`` and ``attention_mask``; and how many logits are wanted, which is all. An input that is none of
   these makes the graph no decoder of this kind.

State is a four-dimensional tensor ``[batch, heads, positions, head size]``; with another layout the graph is not taken
for a decoder either. Such a graph still runs, as a graph whose state is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ruvcompile.errors import InputError

IDS, LOGITS = "input_ids", "logits"
POSITIONS, MASK, CACHE_POSITION = "position_ids", "attention_mask", "cache_position"
FILLED = frozenset({POSITIONS, MASK, CACHE_POSITION})
WANTED = frozenset({"num_logits_to_keep", "logits_to_keep"})
MERGED = "use_cache_branch"
HALVES = ("key", "value")

_STATE = re.compile(r"(past|present)")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Pair:
    """A part of the state: ``half`` (``key`` or ``value``) of a layer, as it enters and as it leaves."""

    layer: int
    half: str
    past: ir.Value
    present: ir.Value


@dataclass(frozen=True)
class Ports:
    """What a decoder takes and gives: its tokens, its logits, its state by layer, and what positions alone decide."""

    ids: ir.Value
    logits: ir.Value
    pairs: tuple[Pair, ...]
    filled: tuple[ir.Value, ...]

    @property
    def layers(self) -> int:
        """Layers that have state."""
        return len({pair.layer for pair in self.pairs})


def find_ports(model: ir.Model) -> Ports | None:
    """The ports of a decoder; None for any other graph.

    Raises:
        InputError: ``decoder-merged``: it is a decoder with and without past in one file, behind an If.
    """
    inputs = {str(value.name): value for value in model.graph.inputs}
    outputs = {str(value.name): value for value in model.graph.outputs}
    pasts = _by_layer(inputs.values(), "past")
    presents = _by_layer(outputs.values(), "present")
    if not pasts or IDS not in inputs or LOGITS not in outputs:
        return None
    if MERGED in inputs:
        raise InputError(
            "decoder-merged",
            f"this decoder is two in one file: {MERGED} chooses between one without past and one with it",
            hint="export it again without merging, or give the file of the decoder with past",
        )
    other = set(inputs) - {IDS} - FILLED - WANTED - {str(value.name) for value in pasts.values()}
    extra = set(outputs) - {LOGITS} - {str(value.name) for value in presents.values()}
    if other or extra or pasts.keys() != presents.keys() or not _complete(sorted(pasts)):
        return None
    if any(value.shape is not None and len(value.shape) != 4 for value in pasts.values()):
        return None
    pairs = tuple(Pair(*key, pasts[key], presents[key]) for key in sorted(pasts))
    return Ports(inputs[IDS], outputs[LOGITS], pairs, tuple(inputs[name] for name in inputs if name in FILLED))


def why_no_decoder(model: ir.Model) -> str | None:
    """What of a graph with a decoder's state keeps it from being one, as a sentence; None of one that has no state."""
    inputs = [str(value.name) for value in model.graph.inputs]
    outputs = [str(value.name) for value in model.graph.outputs]
    pasts, presents = _by_layer(model.graph.inputs, "past"), _by_layer(model.graph.outputs, "present")
    if not pasts:
        return None
    states = {str(value.name) for value in (*pasts.values(), *presents.values())}
    foreign = [name for name in inputs if name not in {IDS, *FILLED, *WANTED, *states}]
    extra = [name for name in outputs if name not in {LOGITS, *states}]
    if IDS not in inputs or LOGITS not in outputs:
        return f"it has no input {IDS}" if IDS not in inputs else f"it has no output {LOGITS}"
    if foreign:
        return f"nobody knows what goes into its input {foreign[0]}"
    if extra:
        return f"its output {extra[0]} is neither {LOGITS} nor state"
    if odd := sorted(pasts.keys() ^ presents.keys()):
        layer, half = odd[0]
        return f"the {half} of layer {layer} goes {'in and does not come out' if odd[0] in pasts else 'out only'}"
    return "its state is of another layout, or of layers that are not counted 0, 1, 2 ..."


def by_position(rows: ir.Value | None) -> bool:
    """Whether ``rows`` of a table are taken by position, not by token; what is added to positions does not matter."""
    while rows is not None and (maker := rows.producer()) is not None and maker.inputs:
        rows = maker.inputs[0]
    return rows is not None and rows.name == POSITIONS


def _by_layer(values: Iterable[ir.Value], side: str) -> dict[tuple[int, str], ir.Value]:
    found: dict[tuple[int, str], ir.Value] = {}
    for value in values:
        name = str(value.name)
        kinds, numbers = _STATE.findall(name), _NUMBER.findall(name)
        # ``past_key_values`` names both halves; what is left beside it says which this is.
        halves = [half for half in HALVES if half in name.replace("key_values", "")]
        if kinds == [side] and len(numbers) == 1 and len(halves) == 1:
            found[int(numbers[0]), halves[0]] = value
    return found


def _complete(keys: Sequence[tuple[int, str]]) -> bool:
    """Whether the layers are 0, 1, 2 ..., each with both halves."""
    return list(keys) == [(layer, half) for layer in range(len(keys) // 2) for half in HALVES]


__all__ = [
    "CACHE_POSITION",
    "FILLED",
    "IDS",
    "LOGITS",
    "MASK",
    "POSITIONS",
    "WANTED",
    "Pair",
    "Ports",
    "by_position",
    "find_ports",
    "why_no_decoder",
]
