"""Cost rows of a kind of machine that was not measured: this machine's, scaled by the figures of both.

A unit's time is bounded by the slowest of what it has to do (the roofline of a machine), and each of its nodes costs a
little more::

    time(n rows) = nodes x node_overhead + max(operations x n / matmat,
                                               weights / matvec + (values x n + keys and values) / memory_bandwidth)

With one row the second line is the larger one: decoding waits for weights. With many, and in the chunks of a prompt,
it is the first. Graphs of floats have matmat of floats, and read weights as they read all else. Neither side of this is
the truth, but their quotient, there and here, is what a measured time is multiplied by: every point of a unit's curve
by its own. So where a unit is bounded by the same thing on both machines, it is scaled by that figure alone.

This machine's figures are measured (``ruvrun.profile.rates``), the target's are in its data, with their sources. A
figure that the target lacks is taken to be as many times this machine's as the one that is most like it; what none is
like is as here. Figures are of all cores of the machine: with fewer threads products are slower, memory is not.

Such rows say ``scaled``, and are no promise: measure on the machine where you can.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from ruvcompile.measure.work import Work
from ruvcompile.targets import Target
from ruvrun.costs import SCALED, CostTable, NodeCost, Overhead, Point, Provenance, Rate, UnitCost
from ruvrun.profile.provenance import provenance

MEMORY, OVERHEAD, FLOATS = "memory_bandwidth", "node_overhead", "f32_matmat"
LIKE = {
    MEMORY: ("int4_matvec", "int8_matvec"),
    "int4_matvec": ("int8_matvec", MEMORY),
    "int8_matvec": ("int4_matvec", MEMORY),
    "int4_matmat": ("int8_matmat", FLOATS, "int4_matvec", MEMORY),
    "int8_matmat": ("int4_matmat", FLOATS, "int8_matvec", MEMORY),
    FLOATS: ("int8_matmat", "int4_matmat", MEMORY),
    OVERHEAD: (FLOATS, "int8_matmat", "int4_matmat", MEMORY),
}
"""Every figure, and those that tell most about it where it is not known, best first."""

_SHARED = (MEMORY, OVERHEAD)
_CHUNK = 128


@dataclass(frozen=True)
class Figures:
    """The figures of both machines: ``here`` and ``there`` hold all of ``LIKE``; ``how`` says where they are from."""

    here: Mapping[str, float]
    there: Mapping[str, float]
    how: str

    def factor(self, work: Work, rows: int = 1, tokens: int = 1, depth: int = 0) -> float:
        """How many times as long as here a step of ``rows`` sequences of ``tokens`` tokens takes there."""
        return seconds(work, self.there, rows, tokens, depth) / seconds(work, self.here, rows, tokens, depth)


def figures(
    here: Mapping[str, float], target: Target, threads: int, measured: Mapping[str, Rate] | None = None
) -> Figures:
    """What is known of this machine and of ``target`` with ``threads`` threads.

    Args:
        here: this machine's figures, by name, all of them, with the threads that the costs were measured with.
        measured: on such a machine, with that many threads: better than what the target's data say.
    """
    known = {figure.name: figure for figure in target.figures if figure.name in LIKE}
    there = {name: figure.value * _share(name, target, threads) for name, figure in known.items()}
    there |= {name: rate.value for name, rate in (measured or {}).items() if name in LIKE}
    kinds = {name: f"{figure.unit} ({figure.kind})" for name, figure in known.items()}
    kinds |= {name: f"{rate.unit} (measured)" for name, rate in (measured or {}).items() if name in LIKE}
    told = [f"{name} {here[name]:.3g} to {there[name]:.3g} {kinds[name]}" for name in there]
    for name, others in LIKE.items():
        if name not in kinds:
            like = next((other for other in others if other in kinds), None)
            faster = 1.0 if like is None else there[like] / here[like]
            there[name] = here[name] * (1 / faster if name == OVERHEAD else faster)
            told.append(f"{name} unknown, taken as {like or 'here'}")
    what = "; ".join(told) if kinds else "by 1: the target has no figures, so it is taken to be as fast as this machine"
    return Figures(here, there, f"{SCALED} {what}")


def scale(table: CostTable, target: Target, threads: int, by: Figures, work: Mapping[str, Work]) -> CostTable:
    """The rows of ``table`` as rows of ``target`` with ``threads`` threads.

    Args:
        table: measured here; stages and links that were measured as such are left out.
        work: what each unit does, by key.
    """
    here = provenance(target.backend, "", threads)
    source = Provenance(machine=here.machine, cpu=here.cpu, software=f"{by.how}; {here.software}", date=here.date)
    return CostTable(
        provenance=[source],
        unit=[_unit(row, target, threads, by, work[row.key]) for row in table.unit if row.key in work],
        overhead=[_overhead(row, target, threads, by) for row in table.overhead],
    )


def seconds(work: Work, figure: Mapping[str, float], rows: int = 1, tokens: int = 1, depth: int = 0) -> float:
    """The roofline of a machine with these figures: how long a step of this unit takes at least."""
    matvec, matmat = (f"int{work.bits}_matvec", f"int{work.bits}_matmat") if work.bits in (4, 8) else (MEMORY, FLOATS)
    count = rows * tokens
    values = count * work.row_bytes + rows * (depth + tokens) * work.depth_bytes
    moved = work.weight_bytes / figure[matvec] + values / figure[MEMORY]
    return work.nodes * figure[OVERHEAD] + max(work.operations * count / figure[matmat], moved)


def _share(name: str, target: Target, threads: int) -> float:
    return 1.0 if name in _SHARED or not target.cores else min(1.0, threads / target.cores)


def _unit(row: UnitCost, target: Target, threads: int, by: Figures, work: Work) -> UnitCost:
    single = by.factor(work, depth=row.depth)
    return msgspec.structs.replace(
        row,
        target=target.name,
        backend=target.backend,
        threads=threads,
        ms=_ms(row.ms * single),
        ms_per_token=_ms(row.ms_per_token * by.factor(work, tokens=row.chunk or _CHUNK)),
        curve=[_point(point, by, work) for point in row.curve],
        node=[NodeCost(name=node.name, op=node.op, ms=_ms(node.ms * single)) for node in row.node],
        source=0,
    )


def _point(point: Point, by: Figures, work: Work) -> Point:
    factor = by.factor(work, point.rows, point.tokens, point.depth)
    return msgspec.structs.replace(point, ms=_ms(point.ms * factor))


def _overhead(row: Overhead, target: Target, threads: int, by: Figures) -> Overhead:
    """What processes do beside the back end is many small things, but for the bytes, which are copied."""
    small, copied = by.there[OVERHEAD] / by.here[OVERHEAD], by.here[MEMORY] / by.there[MEMORY]
    names = ("stage_ms", "stage_row_ms", "head_ms", "head_row_ms", "hop_ms")
    times = {name: _ms(getattr(row, name) * small) for name in names}
    kind = {"target": target.name, "backend": target.backend, "threads": threads, "source": 0}
    return msgspec.structs.replace(row, **kind, **times, byte_ms=row.byte_ms * copied)


def _ms(value: float) -> float:
    return round(value, 6)
