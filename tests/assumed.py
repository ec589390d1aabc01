"""Costs that nobody measured, for tests that build and are about something else.

Measuring starts processes and takes seconds, and where a cut lies must not depend on how busy the machine is. Every
unit costs one millisecond on every node, and no stages are run together, unless a test gives its own table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from ruvcompile import compile as steps
from ruvcompile.passes.pieces import label
from ruvcompile.passes.units import Unit
from ruvcompile.plan import Member
from ruvcompile.settle import looks
from ruvrun.costs import CostTable, Overhead, Provenance, UnitCost, merge

HERE = Provenance(machine="no machine", cpu="none", software="assumed by a test", date="2026-11-30")
CHUNK, DEPTH = 128, 256


def costs(labels: Mapping[str, str], members: Sequence[Member], kind: str) -> CostTable:
    """A complete table; ``labels`` are names of units for people, by key."""
    units, overheads = [], []
    for member in dict.fromkeys(members):
        on = {"target": member.target.name, "backend": member.target.backend, "threads": member.threads}
        on |= {"beside": member.beside, "source": 0}
        overheads.append(Overhead(kind=kind, **on))
        units += [
            UnitCost(key=key, label=name, ms=1.0, ms_per_token=0.1, depth=DEPTH, chunk=CHUNK, **on)
            for key, name in labels.items()
        ]
    return merge([CostTable(provenance=[HERE], unit=units, overhead=overheads)])


def assumed_fleet(
    program: Any,
    units: Sequence[Unit],
    keys: Sequence[str],
    known: CostTable,
    members: Sequence[Member],
    *_: Any,
    **__: Any,
) -> CostTable:
    """In the place of ``measure_fleet``: what the given tables know, and one millisecond for the rest."""
    kind = "decoder" if program.decoder is not None else "graph"
    labels = {key: label(unit, decoder=kind == "decoder") for key, unit in zip(keys, units, strict=True)}
    return merge([costs(labels, members, kind), known])


def assume_costs(patch: pytest.MonkeyPatch) -> None:
    """Until ``patch`` is undone no build of this process measures anything."""
    patch.setattr(steps, "measure_fleet", assumed_fleet)
    patch.setattr(looks, "can_run_here", lambda _plan: False)
