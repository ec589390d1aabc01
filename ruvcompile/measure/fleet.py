"""The cost rows a fleet needs: measured here for this kind of machine, scaled for others, or as given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ruvcompile.fleet import HOST
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import measure
from ruvcompile.measure.scale import figures, scale
from ruvcompile.measure.work import works
from ruvcompile.passes.infer import Type
from ruvcompile.passes.units import Unit
from ruvcompile.plan import Member
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvrun.costs import CostTable, merge
from ruvrun.executors import Array
from ruvrun.machine import cores
from ruvrun.profile.rates import measure_rates


def measure_fleet(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    known: CostTable,
    members: Sequence[Member],
    samples: Mapping[str, Array],
    *,
    store: WeightStore,
    scratch: Path,
    progress: Progress,
    types: Mapping[str, Type] | None = None,
) -> CostTable:
    """A row for every unit on every member's target and threads.

    Rows of a target that is not this machine are taken from ``known``; where they are missing this machine is
    measured, with as many threads as it has of those asked for, and its rows are scaled.
    """
    kinds = dict.fromkeys((member.target, member.threads) for member in members)
    used = []
    for target, threads in kinds:
        here = target.name == HOST
        found = known.rows(keys, target.name, target.backend, threads)
        complete = all(row is not None for row in found)
        name, count = (target.name, threads) if here or complete else (HOST, min(threads, cores()))
        rows = measure(
            program,
            units,
            keys,
            known,
            target=name,
            backend=target.backend,
            threads=count,
            store=store,
            scratch=scratch,
            samples=samples,
            progress=progress,
        )
        if here or complete:
            used.append(rows)
            continue
        with progress.step("rates"):
            rates = known.rates(HOST, target.backend, count).values() or measure_rates(HOST, target.backend, count)
        by = figures({rate.name: rate.value for rate in rates}, target, threads)
        used.append(scale(rows, target, threads, by, works(program, units, keys, types)))
    return merge(used)
