"""What the nodes of a graph cost: ``graph.py``'s times, by the units' keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure.graph import measure_graph
from ruvcompile.measure.segment import UnitTime
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvrun.executors import Array


def measure_units(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    *,
    store: WeightStore,  # noqa: ARG001 - the graph is run from memory
    scratch: Path,  # noqa: ARG001 - nor is anything written
    threads: int,
    samples: Mapping[str, Array],
    progress: Progress,
) -> dict[str, UnitTime]:
    """Times of the units by key; units of equal key share their mean."""
    with progress.step("measure"):
        times = measure_graph(program, samples, threads)
    members: dict[str, list[float]] = {}
    for key, unit in zip(keys, units, strict=True):
        members.setdefault(key, []).append(sum(times[name] for name in unit.nodes))
    return {key: UnitTime(ms=round(sum(ms) / len(ms), 6), spread=0.0) for key, ms in members.items()}
