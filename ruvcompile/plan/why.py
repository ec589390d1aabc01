"""Why a shape is not the plan: how much less it gives of what is wanted, and what keeps it from giving more.

What is wanted is what a plan is chosen by: tokens (or items) per second of all the planned sequences, or of a single
one. What keeps a shape from more is the resource that its slowest pipeline waits for: a stage, a link or the head,
which has something to do all the time; or the way, on which a step is so long that none of them has.
"""

from __future__ import annotations

from itertools import pairwise

from ruvcompile.partition import evaluate
from ruvcompile.plan.judge import Judge
from ruvcompile.plan.loads import Load, load_of
from ruvcompile.plan.pace import in_ring, round_ms, shares
from ruvcompile.plan.shapes import Shape, Solution
from ruvcompile.plan.solve import Solver
from ruvcompile.plan.tasks import Desk

_EQUAL = 5e-4
"""Rates are told to a tenth of a per cent."""


def compared(desk: Desk, chosen: Solution, other: Solution) -> str:
    """How much more or less ``other`` gives than the plan, of what that was chosen by."""
    latency = desk.facts.options.objective == "latency"
    one, two = (each.single if latency else each.rate for each in (other, chosen))
    what = f"{'tokens' if desk.facts.decoder else 'items'}/s{' for a single user' if latency else ''}"
    more = one / max(two, 1e-9) - 1
    if abs(more) < _EQUAL:
        nodes = other.shape.nodes
        return f"as many {what} with {nodes} node{'s' if nodes > 1 else ''}"
    return f"{100 * abs(more):.1f} % {'more' if more > 0 else 'fewer'} {what}"


def limit(desk: Desk, solution: Solution) -> str:
    """What keeps a shape from more."""
    judge, replicas, stages = Judge(desk), solution.shape.replicas, solution.shape.stages
    if desk.facts.options.objective == "latency" or solution.streams == 1:
        return _passing(desk, solution, Load(1, solution.streams, active=1))
    lanes = min(replicas, solution.streams)
    found = []
    for number, share in enumerate(shares(solution.streams, replicas)):
        if share:
            load, steps = load_of(desk.facts, share, lanes, stages), in_ring(share, stages, decoder=desk.facts.decoder)
            beat = judge.beat(solution.pipelines[number], load, solution.scene)
            found.append((round_ms(beat, steps), -number, load, steps * beat.slowest < beat.through))
    _, turned, load, passing = max(found, key=lambda each: each[:2])
    if passing:
        return _passing(desk, solution, load, -turned)
    return f"the limit is {_slowest(desk, solution, load, -turned)}"


def by_memory(desk: Desk, shape: Shape) -> bool:
    """Whether a shape that does not fit would, if every node had all the memory that anyone needs."""
    facts = desk.facts
    ruled = bool(facts.held) or any(facts.barred.values())
    return not ruled or Solver(Desk(desk.room, limitless=True)).solve(shape) is not None


def unfit(desk: Desk, shape: Shape) -> str:
    """Why there is no way at all to have a shape."""
    if by_memory(desk, shape):
        return "does not fit into the memory of the nodes"
    return "no cut has every part where it may be"


def _passing(desk: Desk, solution: Solution, load: Load, number: int = 0) -> str:
    """A step that is under way, and how much of that is not work."""
    stages = solution.pipelines[number]
    through = Judge(desk).beat(stages, load, solution.scene).through
    work = sum(evaluate(desk.task(load.passing, solution.scene, "latency"), stages).stage_ms)
    return f"the limit is the way of a step, {through:.2f} ms, {max(0.0, through - work):.2f} of them outside of stages"


def _slowest(desk: Desk, solution: Solution, load: Load, number: int) -> str:
    """The resource that is busy all the time."""
    members, stages = solution.members[number], solution.pipelines[number]
    costs = evaluate(desk.task(load, solution.scene, "throughput"), stages)
    busy = [(ms, f"stage {place} on {members[place].name}") for place, ms in enumerate(costs.stage_ms)]
    busy += [
        (ms, f"the link from {one.name} to {two.name}")
        for ms, (one, two) in zip(costs.link_ms, pairwise(members), strict=True)
    ]
    if not any(desk.room.groups[stage.kind].head for stage in stages):
        busy.append((load.lanes * desk.head_ms(solution.scene, load.each), f"the head on {desk.room.head.name}"))
    return max(busy, key=lambda each: each[0])[1]


__all__ = ["by_memory", "compared", "limit", "unfit"]
