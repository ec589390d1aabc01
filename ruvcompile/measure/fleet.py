"""The cost rows a fleet needs: measured here for this kind of machine, scaled for others, or as given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ruvcompile.fleet import HOST
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import measure
from ruvcompile.measure.choice import each_measured, given, of_kind
from ruvcompile.measure.scale import figures, scale
from ruvcompile.measure.terms import Terms
from ruvcompile.measure.work import works
from ruvcompile.passes.infer import Type
from ruvcompile.passes.units import Unit
from ruvcompile.plan import Member
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.targets import Target
from ruvrun.costs import CostTable, merge
from ruvrun.executors import Array
from ruvrun.machine import cores
from ruvrun.profile.rates import measure_rates, require_rated


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
    most_rows: int = 0,
) -> CostTable:
    """A row for every unit on every member's target and threads, measured in its company, and the overheads.

    What else is known of machines and links stays, too. Rows of a target other than ``host`` are taken from ``known``
    in whatever company they were measured, also where its nodes are processes here; where they are missing this
    machine is measured, with as many threads as it has of those asked for, and its rows are scaled.

    Args:
        most_rows: of a decoder's largest step, where they are more than are measured anyway.

    Raises:
        InputError: ``rates-unknown``: nothing is scaled for a back end of which there are no figures.
    """
    kinds = dict.fromkeys((member.target, member.threads, member.beside, member.node.local) for member in members)
    used = [CostTable(provenance=known.provenance, stage=known.stage, link=known.link, rate=known.rate)]
    for target, threads, beside, local in kinds:
        here = local or target.name == HOST
        # Of this machine other company is measured; whoever names a kind of its own has measured it as it works.
        found = given(program, keys, known, target, threads, beside if target.name == HOST else None)
        if found is not None:
            used.append(found)
            continue
        count = threads if here else min(threads, cores())
        for backend in () if here else target.backends:
            if not known.rates(HOST, backend, count):
                require_rated(backend)  # before anything is measured for nothing
        terms = Terms(
            target.name if here else HOST,
            target.backend,
            count,
            beside,
            store,
            scratch,
            progress,
            kv_type=target.kv_type,
            rows=most_rows,
        )
        run = partial(measure, program, units, keys, known, terms, samples, types or {})
        measured = each_measured(target, run, progress)
        if here:
            used += measured.values()
            continue
        own = of_kind(keys, known, target, threads)
        _tell_missing(own, keys, target, progress)
        work = works(program, units, keys, types)
        for backend, rows in measured.items():
            with progress.step("rates"):
                rates = known.rates(HOST, backend, count).values() or measure_rates(HOST, backend, count)
            there = known.rates(target.name, backend, threads)
            by = figures({rate.name: rate.value for rate in rates}, target, threads, there)
            used.append(_beside(scale(rows, target.on(backend), threads, by, work), own))
        used.append(own)
    return merge(used)


def _beside(scaled: CostTable, own: CostTable) -> CostTable:
    """The scaled rows of a kind of machine of which the tables have none of their own, in whatever company."""
    units = {(row.key, row.backend) for row in own.unit}
    overheads = {(row.kind, row.backend) for row in own.overhead}
    return msgspec.structs.replace(
        scaled,
        unit=[row for row in scaled.unit if (row.key, row.backend) not in units],
        overhead=[row for row in scaled.overhead if (row.kind, row.backend) not in overheads],
    )


def _tell_missing(own: CostTable, keys: Sequence[str], target: Target, progress: Progress) -> None:
    """Say what the tables lack of a machine that they know in part."""
    if own.unit:
        lacking = len(set(keys) - {row.key for row in own.unit})
        what = f"{lacking} of {len(set(keys))} parts" if lacking else "what a step costs beside the parts"
        progress.note(f"the tables lack {what} on {target.name}: that is scaled")
