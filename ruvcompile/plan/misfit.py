"""Why nothing fits: what is missing on which node, and what would make it fit, found by trying.

The sentence is about the shape that was asked for, or else the one that spreads the model over the most nodes: its best
cuts if memory did not count, and the stage that is the furthest from fitting. What would help is tried, one change at a
time, until the whole fits: a shorter context, fewer sequences, more nodes like those there are, fewer bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from ruvcompile.errors import FitError
from ruvcompile.plan.choose import forced_shapes
from ruvcompile.plan.facts import Facts
from ruvcompile.plan.groups import Room
from ruvcompile.plan.loads import loads_of
from ruvcompile.plan.memory import installed, usable
from ruvcompile.plan.places import held_together
from ruvcompile.plan.rules import LESS, told
from ruvcompile.plan.shapes import Cuts, Shape, Solution
from ruvcompile.plan.solve import Solver
from ruvcompile.plan.tasks import Desk
from ruvcompile.quantities import show_bytes

_MORE_NODES = (1, 2, 3, 4, 6, 8, 12, 16)
_LEAST_CONTEXT = 16
_BITS = {"int8": 8.5, "int4": 4.5, "int2": 2.25}
"""Bits of a weight, its share of the scales included."""


def nothing_fits(desk: Desk, cuts: Cuts | None) -> FitError:
    """The error for a fleet on which no shape that is allowed fits."""
    facts, free = desk.facts, Desk(desk.room, limitless=True)
    solver = Solver(free, cuts)
    allowed = sorted(forced_shapes(facts, cuts), key=lambda shape: (shape.replicas, -shape.stages))
    solution = next((found for shape in allowed if (found := solver.solve(shape)) is not None), None)
    if solution is None:
        stages = allowed[0].stages if allowed else facts.options.stages or 1
        if facts.held or any(facts.barred.values()):
            into = f" into {stages} stages" if facts.options.stages else ""
            what = f"no cut of this model{into} has every part where it may be"
            return FitError("fleet-rejected", what, context=told(facts.rejected), hint=LESS)
        return FitError(
            "no-legal-cut",
            f"this model cannot be cut into {stages} stages",
            context=held_together(facts.units, facts.edges),
            hint="build with fewer --nodes",
        )
    return _short(desk, solution, list(_ways_out(desk, cuts)))


def _short(desk: Desk, solution: Solution, ways: list[str]) -> FitError:
    """Say which stage is the furthest from fitting its node, and what it needs."""
    facts, share = desk.facts, -(-solution.streams // solution.shape.replicas)
    over = []
    for stages, members in zip(solution.pipelines, solution.members, strict=True):
        for place, (stage, member) in enumerate(zip(stages, members, strict=True)):
            group = desk.room.groups[stage.kind]
            own = desk.room.prices.runtime_bytes(member) + desk.activations
            held = set(stage.items)
            sizes = desk.sizes(group)
            state, weights = sizes.state(held, share), sizes.weights(held)
            items = sizes.items(share, 1)
            need = own + sum(items[item] for item in held)
            need += sum(each.size for each in sizes.shared if not held.isdisjoint(each.readers))
            room = usable(facts, group.first, solution.scene)
            over.append((need - room, -place, need, weights, state, own, room, member, place))
    _, _, need, weights, state, own, room, member, place = max(over, key=lambda each: each[:2])
    detail = [f"weights {show_bytes(weights)}"]
    if facts.decoder:
        detail.append(f"key/value {show_bytes(state)} ({share} streams x {facts.context} tokens)")
    detail.append(f"runtime {show_bytes(own)}")
    whole = installed(member)
    unreserved = member.node.usable(whole)
    sharers = round(unreserved / room) if room else 1
    shared = f", shared by {sharers} nodes" if sharers > 1 else ""
    return FitError(
        "fleet-memory-short",
        f"stage {place} needs {show_bytes(need)} on {member.name}, which has {show_bytes(room)} usable",
        context=[
            f"{', '.join(detail)}; {show_bytes(whole)} installed, {show_bytes(whole - unreserved)} reserved{shared}",
            *told(facts.rejected),
        ],
        hint=" or ".join(ways) if ways else "use nodes with more memory",
    )


def _ways_out(desk: Desk, cuts: Cuts | None) -> Iterator[str]:
    """What would make it fit, each by itself: the least change of each sort that does."""
    facts, options = desk.facts, desk.facts.options

    def fits(changed: Facts) -> bool:
        other = Desk(Room(changed))
        solver = Solver(other, cuts)
        return any(
            not other.too_large(shape, loads_of(changed, shape).full.streams) and solver.solve(shape) is not None
            for shape in _tried(changed, cuts)
        )

    if facts.decoder:
        context = _largest(
            _LEAST_CONTEXT, facts.context, lambda size: fits(replace(facts, options=replace(options, context=size)))
        )
        if context:
            yield f"--context {context}"
        most = facts.streams(len(facts.members))
        streams = _largest(1, most, lambda count: fits(replace(facts, options=replace(options, streams=count))))
        if streams:
            yield f"--streams {streams}"
    if cuts is None and options.stages is None:
        yield from _more_nodes(facts, fits)
    yield from _fewer_bits(facts, fits)


def _more_nodes(facts: Facts, fits: Callable[[Facts], bool]) -> Iterator[str]:
    """More nodes like the one with the most memory, where they are machines of their own."""
    apart = [member for member in facts.members if not member.node.local]
    if not apart:
        return
    best = max(apart, key=lambda member: member.node.usable(installed(member)))
    for count in _MORE_NODES:
        more = tuple(
            replace(best, node=replace(best.node, name=f"{best.name}-more-{number}")) for number in range(count)
        )
        barred = {**facts.barred, **{each.name: facts.barred.get(best.name, frozenset()) for each in more}}
        if fits(replace(facts, members=(*facts.members, *more), barred=barred)):
            yield f"{count} more node{'s' if count > 1 else ''} like {best.name}"
            return


def _fewer_bits(facts: Facts, fits: Callable[[Facts], bool]) -> Iterator[str]:
    """The first of the smaller quantisations that every target of the fleet has and that fits."""
    now = _bits(facts)
    if now is None:
        return
    for name, bits in _BITS.items():
        if bits < now and all(name in member.target.quants for member in facts.members):
            smaller = replace(facts)
            smaller.__dict__["weight_bytes"] = {
                weight: int(size * bits / now) for weight, size in facts.weight_bytes.items()
            }
            if fits(smaller):
                yield f"--quant {name}"
                return


def _bits(facts: Facts) -> float | None:
    """Bits per weight of a decoder's matrices as they are; None for a graph, whose weights stay as they are."""
    if not facts.decoder:
        return None
    found = Counter(
        node.attributes["bits"].as_int()
        for node in facts.program.model.graph
        if node.op_type == "MatMulNBits" and "bits" in node.attributes
    )
    if found:
        # Some matrices keep more bits than was asked for; what most have is what was asked.
        ((most, _),) = found.most_common(1)
        return {2: 2.25, 4: 4.5, 8: 8.5}.get(most, float(most))
    weights = facts.program.model.graph.initializers.values()
    widths = [int(value.dtype.itemsize * 8) for value in weights if value.dtype is not None]
    return float(max(widths, default=32))


def _tried(facts: Facts, cuts: Cuts | None) -> list[Shape]:
    """The shapes that are the most likely to fit: one pipeline, as long as it may be."""
    allowed = forced_shapes(facts, cuts)
    least = min((shape.replicas for shape in allowed), default=1)
    return sorted((shape for shape in allowed if shape.replicas == least), key=lambda shape: -shape.stages)


def _largest(low: int, high: int, fits: Callable[[int], bool]) -> int:
    """The largest number from ``low`` up to below ``high`` that fits, to two digits; 0 for none."""
    if high <= low or not fits(low):
        return 0
    while high - low > max(1, low // 50):
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    step: int = 10 ** max(0, len(str(low)) - 2)
    return max(low // step * step, 1)
