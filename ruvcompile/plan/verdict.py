"""A plan in one sentence."""

from __future__ import annotations

from ruvcompile.plan.choose import Choice
from ruvcompile.plan.shapes import Shape, Solution
from ruvcompile.plan.tasks import Desk
from ruvcompile.plan.why import by_memory


def verdict(desk: Desk, choice: Choice) -> str:
    """One sentence: what was chosen, what it gives, and whether one node would have been as good."""
    chosen, what = choice.chosen, "tokens" if desk.facts.decoder else "items"
    alone = _solution(choice, Shape(1, 1))
    if chosen.shape == Shape(1, 1):
        return _one(choice, what)
    told = shape_text(chosen.shape)
    rate = f"{chosen.rate:.1f} {what}/s with {chosen.streams} in flight"
    if alone is None:
        return f"{told}: {_too_much(desk, chosen)}; {rate}"
    if chosen.rate <= alone.rate and chosen.single <= alone.single:
        return f"one node is faster: {alone.rate:.1f} {what}/s against {chosen.rate:.1f} with {told}"
    if desk.facts.options.objective == "latency":
        return f"{told}: a single user gets {chosen.single:.1f} {what}/s, and {alone.single:.1f} from one node; {rate}"
    gives = "give" if chosen.shape.nodes > 1 else "gives"
    return (
        f"{told} {gives} {chosen.rate / alone.rate:.2f}x the {what}/s of one node with {chosen.streams} in flight; "
        f"a single user gets {chosen.single:.1f} {what}/s, and {alone.single:.1f} from one node"
    )


def _too_much(desk: Desk, chosen: Solution) -> str:
    """Why one node is not enough."""
    if chosen.shape.stages == 1:
        what = "sequences" if desk.facts.decoder else "callers"
        return f"one node has no room for {chosen.streams} {what}"
    return "the model does not fit on one node" if by_memory(desk, Shape(1, 1)) else "no node may hold all of it"


def shape_text(shape: Shape) -> str:
    """``2 stages``, ``4 copies on a node each``, ``2 pipelines of 2 stages``."""
    if shape.replicas == 1:
        return f"{shape.stages} stage{'s' if shape.stages > 1 else ''}"
    if shape.stages == 1:
        return f"{shape.replicas} copies on a node each"
    return f"{shape.replicas} pipelines of {shape.stages} stages"


def _one(choice: Choice, what: str) -> str:
    chosen = choice.chosen
    others = [other for _, other in choice.others if other is not None]
    if not choice.others:
        return f"one node: {chosen.rate:.1f} {what}/s with {chosen.streams} in flight"
    if not others:
        return f"one node: {chosen.rate:.1f} {what}/s with {chosen.streams} in flight; nothing else fits"
    best = max(others, key=lambda other: other.rate)
    told = f"{best.rate:.1f} with {shape_text(best.shape)}"
    if best.rate > chosen.rate:
        return f"one node, as asked: {chosen.rate:.1f} {what}/s; {told}"
    return f"one node is faster: {chosen.rate:.1f} {what}/s against {told}"


def _solution(choice: Choice, shape: Shape) -> Solution | None:
    return next((solution for each, solution in choice.others if each == shape), None)
