"""Which shape: how many pipelines of how many stages, out of all that the fleet's nodes allow.

Every shape has a ceiling, what it would reach if all work could be spread evenly over the fastest nodes and nothing
had to fit. Shapes are solved in the order of their ceilings, the highest first, until none that is left could be
better than the best that was found. So a fleet of a thousand nodes costs little more than one of four.

The default for ``--streams`` grows with the nodes in use, so each shape is planned for its own; all that was asked for
is the same for all.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from ruvcompile.errors import UsageError
from ruvcompile.passes.pieces import wire
from ruvcompile.plan.facts import Facts
from ruvcompile.plan.loads import Load, loads_of
from ruvcompile.plan.pace import Beat, calls_per_second, per_second
from ruvcompile.plan.places import named_cuts
from ruvcompile.plan.shapes import Cuts, Shape, Solution, rounded
from ruvcompile.plan.solve import Solver
from ruvcompile.plan.tasks import Desk

MOST_TOLD = 12
"""So many shapes that lost are told."""

_SLACK = 1 + 1e-9


@dataclass(frozen=True)
class Choice:
    """What was chosen, and what it was chosen over.

    Attributes:
        chosen: the best of what was allowed.
        free: the best of the same shape with cuts of its own, where others were forced; else None.
        best: the best of all shapes, where another was forced; else None.
        others: shapes that were not chosen; None for one that does not fit.
    """

    chosen: Solution
    free: Solution | None
    best: Solution | None
    others: tuple[tuple[Shape, Solution | None], ...]


def choose(desk: Desk, cuts: Cuts | None) -> Choice | None:
    """The best shape of those that are allowed; None where none of them fits.

    Args:
        cuts: what ``--cut`` says, if anything.
    """
    solver, facts = Solver(desk, cuts), desk.facts
    every, allowed = shapes(facts), forced_shapes(facts, cuts)
    chosen = next((each for some in _in_turn(facts, allowed) if (each := _best(solver, desk, some)) is not None), None)
    if chosen is None:
        return None
    best = None
    if len(allowed) < len(every):
        best = _best(solver, desk, every, free=True)
        if best is not None and best.shape == chosen.shape:
            best = None
    free = solver.solve(chosen.shape, free=True) if cuts is not None else None
    if free is not None and free.cuts == chosen.cuts:
        free = None
    told = _told(solver, desk, every, chosen.shape, best.shape if best is not None else None)
    return Choice(chosen, free, best, told)


def shapes(facts: Facts) -> tuple[Shape, ...]:
    """All shapes that the nodes and the model allow."""
    nodes, most = len(facts.members), 1 + sum(edge.legal for edge in facts.edges)
    return tuple(
        Shape(replicas, stages)
        for stages in range(1, min(nodes, most) + 1)
        for replicas in range(1, nodes // stages + 1)
    )


def forced_shapes(facts: Facts, cuts: Cuts | None) -> tuple[Shape, ...]:
    """Those that ``--stages``, ``--replicas`` and ``--cut`` leave."""
    stages = len(cuts) if cuts is not None else facts.options.stages
    replicas = facts.options.replicas
    return tuple(
        shape for shape in shapes(facts) if stages in (None, shape.stages) and replicas in (None, shape.replicas)
    )


def _in_turn(facts: Facts, allowed: Sequence[Shape]) -> list[list[Shape]]:
    """The shapes to choose from; of the next ones only where nothing of those before fits.

    Who says how many stages and not how many pipelines wants as many as the nodes are enough for: ``--nodes 4
    --stages 2`` is two replicas of two.
    """
    if facts.options.stages is None or facts.options.replicas is not None:
        return [list(allowed)]
    copies = sorted({shape.replicas for shape in allowed}, reverse=True)
    return [[shape for shape in allowed if shape.replicas == count] for count in copies]


def forced_cuts(facts: Facts) -> Cuts | None:
    """What each stage holds, as ``--cut`` says it; None where it says nothing.

    Raises:
        UsageError: it names what is no cut, or not as many as ``--stages`` asks for.
    """
    named = facts.options.cut
    if not named:
        return None
    wires = [wire(facts.program, edge) for edge in facts.edges]
    most = min(len(named), len(facts.members) - 1)
    wanted = [facts.options.stages - 1] if facts.options.stages else range(max(most, 1), 0, -1)
    first: UsageError | None = None
    for count in wanted:
        try:
            places = named_cuts(facts.program.model.graph, facts.units, facts.edges, wires, named, count)
        except UsageError as error:
            if error.ref != "cut-count":
                raise
            first = first or error
            continue
        bounds = [0, *places, len(facts.units)]
        return tuple(tuple(range(start, stop)) for start, stop in itertools.pairwise(bounds))
    assert first is not None, "there was at least one number to try"
    raise first


def ceiling(desk: Desk, shape: Shape) -> float:
    """What the shape cannot exceed, per second: tokens or calls of all together, or of one for latency."""
    loads = loads_of(desk.facts, shape)
    if desk.facts.options.objective == "latency":
        return 1e3 / max(_least(desk, shape, loads.alone).through, 1e-9)
    each = per_second if desk.facts.decoder else calls_per_second
    rates = {
        share: each(_least(desk, shape, load), share, shape.stages, desk.facts.waiting(share))
        for load, share in ((loads.full, loads.shares[0]), (loads.less, loads.shares[-1]))
        if share
    }
    return sum(rates.get(share, 0.0) for share in loads.shares)


def _least(desk: Desk, shape: Shape, load: Load) -> Beat:
    """The least that a step can take: the fastest node for every unit, the shortest way between any two."""
    (usual, _, one), (work, hop, head) = desk.least(load.each), desk.least(load.rows)
    return Beat(max(usual / shape.stages, load.lanes * one), work + head + (shape.stages - 1) * hop)


def _best(solver: Solver, desk: Desk, allowed: Sequence[Shape], *, free: bool = False) -> Solution | None:
    objective = desk.facts.options.objective
    found: Solution | None = None
    ordered = sorted(
        ((rounded(ceiling(desk, shape)), shape) for shape in allowed), key=lambda pair: (-pair[0], pair[1].nodes)
    )
    for most, shape in ordered:
        reached = found.value(objective)[0] if found is not None else 0.0
        if most * _SLACK < reached:
            break
        if found is not None and most <= reached * _SLACK and shape.nodes >= found.shape.nodes:
            continue
        if desk.too_large(shape, loads_of(desk.facts, shape).full.streams):
            continue
        each = solver.solve(shape, free=free)
        if each is not None and (found is None or each.value(objective) > found.value(objective)):
            found = each
    return found


def _told(
    solver: Solver, desk: Desk, every: Sequence[Shape], chosen: Shape, best: Shape | None
) -> tuple[tuple[Shape, Solution | None], ...]:
    """The others, or the few that say the most: on one node, on all, and those with the highest ceilings."""
    listed = [shape for shape in every if shape != chosen]
    if len(listed) > MOST_TOLD:
        nodes = len(desk.facts.members)
        plain = [Shape(1, 1), Shape(nodes, 1), *(shape for shape in (best,) if shape is not None)]
        longest = max(shape.stages for shape in every)
        plain += [Shape(1, stages) for stages in (2, 4, longest)]
        by_ceiling = sorted(listed, key=lambda shape: (-rounded(ceiling(desk, shape)), shape.nodes))
        # One of each length: of many that differ only in the number of copies, the best says enough.
        lengths = dict.fromkeys(shape.stages for shape in by_ceiling)
        tall = [next(shape for shape in by_ceiling if shape.stages == stages) for stages in lengths]
        some = dict.fromkeys(shape for shape in (*plain, *tall) if shape in set(listed))
        listed = sorted(list(some)[:MOST_TOLD], key=lambda shape: (shape.stages, shape.replicas))
    return tuple((shape, solver.solve(shape, free=True)) for shape in listed)


__all__ = ["Choice", "ceiling", "choose", "forced_cuts", "forced_shapes", "shapes"]
