"""Which parts of a graph a back end can run that cannot run all of it: an operator may be missing, or a type.

The units stand in an order of computation, so any stretch of them is a convex piece, which is lowered and loaded like
a stage. Halving the stretches that cannot be finds the units that cannot, however it is that they cannot; the stretches
between them are what is measured. Units in no stretch have no row of this back end, and a plan keeps them off it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from ruvcompile.errors import InputError
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit
from ruvcompile.program import Piece, Program
from ruvcompile.whole import run_whole
from ruvrun.elements import Value
from ruvrun.executors import load_graph

Span = tuple[int, int]

MOST = 4
"""Stretches that are measured, those of the most units; each is a process of its own."""


def able(
    program: Program,
    units: Sequence[Unit],
    backend: str,
    *,
    store: WeightStore,
    scratch: Path,
    types: Mapping[str, Type],
) -> tuple[list[Span], list[int]]:
    """The longest stretches of ``units`` that ``backend`` can run, first and last + 1; and the units that it cannot."""

    def can(span: Span) -> bool:
        with tempfile.TemporaryDirectory(dir=scratch) as folder:
            try:
                piece, directory = piece_of(program, units, span), Path(folder) / "stage"
                spec = write_stage(
                    program, piece, directory, store, backend=backend, target="", types=types, passing=True
                )
                load_graph(directory, spec, threads=1)
            except InputError:
                return False
        return True

    lacking = _lacking((0, len(units)), can)
    ends = [-1, *lacking, len(units)]
    spans = [(before + 1, after) for before, after in pairwise(ends) if after > before + 1]
    longest = sorted(spans, key=lambda span: (span[0] - span[1], span))[:MOST]
    return sorted(span for span in longest if can(span)), lacking


def piece_of(program: Program, units: Sequence[Unit], span: Span) -> Piece:
    """A stretch of the units as a piece."""
    borders = sorted({end for end in span if 0 < end < len(units)})
    return pieces(program, units, borders)[1 if span[0] else 0]


def inputs_at(program: Program, piece: Piece, samples: Mapping[str, Value]) -> dict[str, Value]:
    """What comes to ``piece`` when the whole graph is run on ``samples``."""
    wanted = [name for name in piece.inputs if name not in samples]
    if not wanted:
        return dict(samples)
    model = program.model.clone()
    values = {value.name: value for node in model.graph for value in node.outputs}
    model.graph.outputs[:] = [values[name] for name in wanted]
    return {**samples, **run_whole(model, samples)}


def _lacking(span: Span, can: Callable[[Span], bool]) -> list[int]:
    """The units of a stretch that cannot be run even alone."""
    start, stop = span
    if start == stop or can(span):
        return []
    if stop - start == 1:
        return [start]
    middle = (start + stop) // 2
    return [*_lacking((start, middle), can), *_lacking((middle, stop), can)]
