"""What each part of the graph costs, in the order of computation: per unit, per layer, per operator.

A graph may have thousands of nodes, and a page shows what a person can read: the largest by name, the rest as one
sum, and the whole as a profile of at most ``PROFILE`` bars, each of which holds neighbours of one stage.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from ruvcompile.report.contents import Figures, StageFigures
from ruvrun.costs import CostTable, UnitCost
from ruvrun.manifest import Manifest

LARGEST = 20
PROFILE = 200
OPERATORS = 12
SCOPES = 24
_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_PARTS = {"attn": "attention", "mlp": "MLP", "embed": "embedding", "head": "output head"}


@dataclass(frozen=True)
class Costed:
    """A unit of the program, its stage, and what a step of the planned rows costs there, in ms.

    ``part`` says what it is: of a decoder attention, MLP, embedding or output head, else its operators.
    """

    name: str
    stage: int
    ms: float
    part: str
    row: UnitCost

    @property
    def layer(self) -> int | None:
        """The number of the layer it is in, where it is in one."""
        found = _LAYER.fullmatch(self.name)
        return int(found[1]) if found else None


@dataclass(frozen=True)
class Bar:
    """A bar of the profile: units ``first`` to ``last`` (numbers from 0) or a layer, one part of it."""

    label: str
    first: int
    last: int
    stage: int
    part: str
    ms: float


def costed(figures: Figures, costs: CostTable, manifest: Manifest) -> list[Costed]:
    """Every unit with its cost on the node that holds it; empty where the plan does not tell where units went.

    The plan reckons with more than a row says: the depth of the context, cores that are shared, what it learnt from
    whole stages. All of that is in the time of the stage, which its units share as their rows tell.
    """
    stages = figures.first_pipeline
    rows: dict[str, list[UnitCost]] = {}
    for row in costs.unit:
        rows.setdefault(row.key, []).append(row)
    threads = {node.name: node.threads for node in manifest.node}
    found = []
    for unit in figures.units:
        stage = stages[unit.stage]
        fitting = _row(rows.get(unit.key, []), stage, threads.get(stage.node, 0))
        if fitting is not None:
            ms = fitting.step_ms(figures.rows)
            found.append(Costed(unit.name, unit.stage, ms, part_of(unit.name, unit.ops), fitting))
    return _as_planned(found, [max(0.0, stage.predicted_ms - own_ms(figures, costs, stage)) for stage in stages])


def _as_planned(units: Sequence[Costed], stage_ms: Sequence[float]) -> list[Costed]:
    """The units, stretched so that those of each stage take so long together."""
    sums = [sum(unit.ms for unit in units if unit.stage == number) for number in range(len(stage_ms))]
    factors = [ms / total if total else 0.0 for ms, total in zip(stage_ms, sums, strict=True)]
    return [replace(unit, ms=unit.ms * factors[unit.stage]) for unit in units]


def own_ms(figures: Figures, costs: CostTable, stage: StageFigures) -> float:
    """What the process of a stage takes for itself in a step of the planned rows: 0 where no table tells."""
    kind = ("decoder" if figures.decoder else "graph", stage.target, stage.backend)
    rows = [row for row in costs.overhead if (row.kind, row.target, row.backend) == kind]
    if not rows:
        return 0.0
    row = max(rows, key=lambda row: row.beside)
    before = [each for each in figures.stages if each.pipeline == stage.pipeline]
    number = before.index(stage)
    moved = stage.cut_bytes + (before[number - 1].cut_bytes if number else 0)
    own = row.stage_ms + row.stage_row_ms * figures.rows + row.byte_ms * moved * figures.rows
    return min(own, stage.predicted_ms)


def _row(rows: Sequence[UnitCost], stage: StageFigures, threads: int) -> UnitCost | None:
    """The row of the stage's kind of machine; as many threads and as much company as it will have, if there is one."""
    fitting = [row for row in rows if (row.target, row.backend) == (stage.target, stage.backend)]
    return max(fitting, key=lambda row: (row.threads == threads, row.beside), default=None)


def part_of(name: str, ops: Sequence[str]) -> str:
    """What a unit is, for a legend."""
    if ops:
        return ops[0] if len(ops) == 1 else f"{ops[0]} and {len(ops) - 1} more"
    found = _LAYER.fullmatch(name)
    part = found[2] if found else name
    return _PARTS.get(part, part)


def profile(units: Sequence[Costed]) -> list[Bar]:
    """The cost along the graph: a decoder's layers, part by part; of any other graph neighbours together."""
    if any(unit.layer is not None for unit in units):
        return _layers(units)
    width = -(-len(units) // PROFILE)
    found = []
    number = 0
    for stage, group in groupby(units, key=lambda unit: unit.stage):
        held = list(group)
        for start in range(0, len(held), width):
            some = held[start : start + width]
            label = some[0].name if len(some) == 1 else f"{some[0].name} to {some[-1].name}"
            part = some[0].part if len(some) == 1 else f"{len(some)} units"
            first = number + start
            found.append(Bar(label, first, first + len(some) - 1, stage, part, sum(unit.ms for unit in some)))
        number += len(held)
    return found


def _layers(units: Sequence[Costed]) -> list[Bar]:
    """A place for each layer, and one for what is before and behind them."""
    places: dict[str, int] = {}
    found = []
    for unit in units:
        label = unit.part if unit.layer is None else f"layer {unit.layer}"
        place = places.setdefault(label, len(places))
        found.append(Bar(label, place, place, unit.stage, unit.part, unit.ms))
    return found


def scopes(units: Sequence[Costed]) -> list[tuple[str, int, float]]:
    """Scope, its units and its ms in all, in the order of computation: what exporters call a layer (``/encoder/0/``).

    As deep as leaves at most ``SCOPES`` of them; empty where names have no scopes.
    """
    found: list[tuple[str, int, float]] = []
    for depth in range(1, 9):
        sums: dict[str, tuple[int, float]] = {}
        for unit in units:
            parts = unit.name.strip("/").split("/")[:-1]
            scope = "/".join(parts[:depth]) or "outside of scopes"
            count, ms = sums.get(scope, (0, 0.0))
            sums[scope] = (count + 1, ms + unit.ms)
        if len(sums) > SCOPES:
            break
        found = [(scope, count, ms) for scope, (count, ms) in sums.items()]
    return found if len(found) > 1 else []


def largest(units: Sequence[Costed], count: int = LARGEST) -> tuple[list[Costed], list[Costed]]:
    """The units that cost most, and all others."""
    ranked = sorted(units, key=lambda unit: -unit.ms)
    return ranked[:count], ranked[count:]


def operators(units: Sequence[Costed], count: int = OPERATORS) -> list[tuple[str, int, float]]:
    """Operator, how often it is there, and its ms in all; the largest first, the rest as one entry."""
    sums: dict[str, tuple[int, float]] = {}
    for unit in units:
        nodes = [(node.op, node.ms) for node in unit.row.node] or [(unit.part, 1.0)]
        whole = sum(share for _, share in nodes)
        for op, share in nodes:
            times, total = sums.get(op, (0, 0.0))
            sums[op] = (times + 1, total + (unit.ms * share / whole if whole else 0.0))
    ranked = sorted(((op, times, ms) for op, (times, ms) in sums.items()), key=lambda entry: (-entry[2], entry[0]))
    if len(ranked) <= count + 1:
        return ranked
    rest = ranked[count:]
    several = f"{len(rest)} other operators"
    return [*ranked[:count], (several, sum(times for _, times, _ in rest), sum(ms for _, _, ms in rest))]
