"""An exported decoder, run on a few sizes to see what its values are.

The sizes of the runs are told apart: no two of batch, sequence, past and total are ever equal, and one run is long, so
that a size that is clipped somewhere is seen to be. All that is asked of a graph is asked in one session, for its
weights may be large.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ruvcompile.passes.state import CACHE_POSITION, IDS, MASK, POSITIONS, Ports
from ruvcompile.whole import open_session, run
from ruvrun.executors import Array

SOURCES = ("batch", "sequence", "past", "total")
Dims = tuple[str | int, ...]

_LONG = 1024
_ALONE = frozenset({"GroupQueryAttention"})
# Elements up to which a vector of whole numbers is kept: a shape has no more.
_SHORT = 16


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call."""

    batch: int
    sequence: int
    past: int

    @property
    def total(self) -> int:
        """Positions after the call."""
        return self.past + self.sequence


def probes(model: ir.Model, context: int) -> tuple[Sizes, ...]:
    """Sizes of calls that tell the four numbers apart, within ``context`` positions.

    A fused attention of ONNX Runtime takes several new positions of one sequence only; its batch is always one.
    """
    alone = any(node.op_type in _ALONE for node in model.graph)
    short = tuple(
        replace(size, batch=1) if alone else size for size in (Sizes(2, 3, 4), Sizes(1, 5, 2), Sizes(3, 2, 7))
    )
    longest = min(_LONG, context)
    return (*short, Sizes(1, 6, longest - 6)) if longest > max(size.total for size in short) else short


def inputs_for(ports: Ports, sizes: Sizes, *, vocab: int, seed: int = 0) -> dict[str, Array]:
    """Inputs of one call: random tokens, random state, positions that follow it, and nothing masked."""
    rng = np.random.default_rng(seed)
    positions = np.arange(sizes.past, sizes.total, dtype=np.int64)
    arrays: dict[str, Array] = {IDS: rng.integers(0, vocab, (sizes.batch, sizes.sequence)).astype(_dtype(ports.ids))}
    for value in ports.filled:
        made = {
            POSITIONS: np.tile(positions, (sizes.batch, 1)),
            MASK: np.ones((sizes.batch, sizes.total), np.int64),
            CACHE_POSITION: positions,
        }[str(value.name)]
        arrays[str(value.name)] = made.astype(_dtype(value))
    for pair in ports.pairs:
        shape = (sizes.batch, heads_of(pair.past), sizes.past, size_of(pair.past))
        arrays[str(pair.past.name)] = (rng.standard_normal(shape) * 0.5).astype(_dtype(pair.past))
    return arrays


def heads_of(past: ir.Value) -> int:
    """Heads of a state tensor."""
    return _static(past, 1)


def size_of(past: ir.Value) -> int:
    """Head size of a state tensor."""
    return _static(past, 3)


def _static(value: ir.Value, axis: int) -> int:
    assert value.shape is not None and isinstance(value.shape[axis], int), "settled when the decoder was recognised"
    return int(value.shape[axis])  # type: ignore[arg-type]  # as asserted


@dataclass(frozen=True)
class Seen:
    """What runs of a graph have shown, by value name and in the order of ``sizes``.

    ``contents`` are those of the graph's own outputs, of its state only what was new, and of short vectors of whole
    numbers.
    """

    sizes: tuple[Sizes, ...]
    shapes: Mapping[str, tuple[tuple[int, ...], ...]]
    kinds: Mapping[str, Any]
    contents: Mapping[str, tuple[Array, ...]]

    def dims(self, name: str) -> Dims | None:
        """The shape of a value, where it is simple: sizes of the call by name, and constants."""
        found = self.shapes.get(name)
        return None if found is None else _answer([np.array(shape, np.int64) for shape in found], self.sizes)

    def elements(self, name: str) -> Dims | None:
        """Likewise what a vector of whole numbers holds."""
        found = self.contents.get(name)
        return None if found is None or found[0].ndim != 1 else _answer(list(found), self.sizes)


def watch(model: ir.Model, ports: Ports, names: Collection[str], sizes: tuple[Sizes, ...], vocab: int) -> Seen:
    """Run ``model`` in calls of some sizes, and look at its outputs and at the values called ``names``."""
    copy = model.clone()
    made = {str(value.name): value for node in copy.graph for value in node.outputs if value.name}
    own = [str(value.name) for value in copy.graph.outputs]
    wanted = list(dict.fromkeys([*own, *(name for name in names if name in made)]))
    copy.graph.outputs[:] = [made[name] for name in wanted]
    session = open_session(copy, optimise=False)
    states = {str(pair.present.name) for pair in ports.pairs}
    shapes: dict[str, list[tuple[int, ...]]] = {name: [] for name in wanted}
    contents: dict[str, list[Array]] = {}
    kinds: dict[str, Any] = {}
    for seed, size in enumerate(sizes):
        arrays = run(session, inputs_for(ports, size, vocab=vocab, seed=seed))
        for name, array in arrays.items():
            shapes[name].append(array.shape)
            kinds[name] = array.dtype
            if name in own:
                contents.setdefault(name, []).append(array[:, :, size.past :].copy() if name in states else array)
            elif array.dtype.kind == "i" and array.size <= _SHORT:
                contents.setdefault(name, []).append(array)
    return Seen(
        sizes,
        {name: tuple(found) for name, found in shapes.items()},
        kinds,
        {name: tuple(found) for name, found in contents.items() if len(found) == len(sizes)},
    )


def _answer(found: list[Array], sizes: tuple[Sizes, ...]) -> tuple[str | int, ...] | None:
    """For each element of a shape what it is, in all runs; None where that is not one thing, or ranks differ."""
    if len({values.shape for values in found}) > 1:
        return None
    answer: list[str | int] = []
    for column in zip(*(values.tolist() for values in found), strict=True):
        source = next((s for s in SOURCES if all(c == getattr(z, s) for c, z in zip(column, sizes, strict=True))), None)
        if source is None and len(set(column)) > 1:
            return None
        answer.append(source or int(column[0]))
    return tuple(answer)


def _dtype(value: ir.Value) -> Any:
    assert value.dtype is not None
    return value.dtype.numpy()
