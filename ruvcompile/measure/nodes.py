"""What the nodes of a graph cost: ``graph.py``'s times, as rows by the units' keys."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ruvcompile.measure.graph import measure_graph
from ruvcompile.measure.provenance import provenance
from ruvcompile.passes.pieces import label
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvrun.costs import CostTable, UnitCost
from ruvrun.executors import Array


def measure_nodes(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    *,
    target: str,
    backend: str,
    threads: int,
    beside: int,
    samples: Mapping[str, Array],
    progress: Progress,
) -> CostTable:
    """A row for every distinct key; units of equal key share their mean."""
    with progress.step("measure"):
        times = measure_graph(program, samples, threads)
    members: dict[str, list[float]] = {}
    labels: dict[str, str] = {}
    for key, unit in zip(keys, units, strict=True):
        members.setdefault(key, []).append(sum(times[name] for name in unit.nodes))
        labels.setdefault(key, label(unit, decoder=False))
    rows = [
        UnitCost(
            key=key,
            label=labels[key],
            target=target,
            backend=backend,
            threads=threads,
            beside=beside,
            ms=round(sum(ms) / len(ms), 6),
            source=0,
        )
        for key, ms in members.items()
    ]
    return CostTable(provenance=[provenance()], unit=rows)
