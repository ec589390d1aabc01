"""Fill a cost table by running the program with the executor that will run it.

``measure`` returns the rows a plan needs. Rows that the given tables already hold are taken from there, even when
others are missing and the program is run for those; when none is missing nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import decoder, nodes
from ruvcompile.measure.provenance import provenance
from ruvcompile.passes.pieces import label
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvrun.costs import CostTable, UnitCost, merge
from ruvrun.executors import Array


def measure(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    known: CostTable,
    *,
    target: str,
    backend: str,
    threads: int,
    store: WeightStore,
    scratch: Path,
    samples: Mapping[str, Array],
    progress: Progress,
) -> CostTable:
    """The cost rows of all ``units`` on this machine, one per distinct key.

    Args:
        program: quantised; what will run.
        units: what it may be cut between.
        keys: what each computes (``unit_keys``); units of equal key are one row.
        known: rows that need not be measured again.
        target, backend, threads: what the rows are filed under.
        store, scratch: where the segments that are run are written.
        samples: inputs to run a graph with; not used for decoders.
    """
    distinct: dict[str, Unit] = {}
    for key, unit in zip(keys, units, strict=True):
        distinct.setdefault(key, unit)
    found = known.rows(distinct, target, backend, threads)
    kept = CostTable(
        provenance=known.provenance,
        unit=[row for row in found if row is not None],
    )
    if len(kept.unit) == len(distinct):
        return merge([kept])
    run = decoder.measure_units if program.decoder is not None else nodes.measure_units
    times = run(program, units, keys, store=store, scratch=scratch, threads=threads, samples=samples, progress=progress)
    rows = [
        UnitCost(
            key=key,
            label=label(unit, decoder=program.decoder is not None),
            target=target,
            backend=backend,
            threads=threads,
            ms=times[key].ms,
            ms_per_token=times[key].ms_per_token,
            spread=times[key].spread,
            depth=times[key].depth,
            chunk=times[key].chunk,
            node=times[key].nodes,
            source=0,
        )
        for key, unit in distinct.items()
    ]
    return merge([CostTable(provenance=[provenance()], unit=rows), kept])
