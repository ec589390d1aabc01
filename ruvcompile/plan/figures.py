"""What a plan promises, as the JSON of ``plan`` and ``build``: per stage, in all, the alternatives, the verdict.

The rate is that of the planned sequences all at work; one user alone waits for the sum of all stages at every token,
which is why a model that one node can hold serves a single user best on one node. The verdict says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ruvcompile.partition import evaluate
from ruvcompile.partition.task import Stage
from ruvcompile.plan.by_backend import by_backend
from ruvcompile.plan.choose import Choice
from ruvcompile.plan.loads import load_of
from ruvcompile.plan.memory import CHUNK, logits_bytes, usable
from ruvcompile.plan.nodes import Member
from ruvcompile.plan.pace import grouping
from ruvcompile.plan.shapes import Proof, Shape, Solution
from ruvcompile.plan.tasks import Desk
from ruvcompile.plan.times import chunk_ms, stage_times, time_to_first
from ruvcompile.plan.verdict import verdict
from ruvcompile.plan.why import compared, limit, unfit
from ruvcompile.quantities import show_bytes
from ruvrun.costs import SCALED
from ruvrun.manifest import Expected

_CHUNKS = (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, CHUNK)


def figures_of(desk: Desk, choice: Choice) -> dict[str, Any]:
    """The JSON object, without what only a build knows."""
    facts, chosen = desk.facts, choice.chosen
    stages, proof = stages_of(desk, chosen), chosen.proof
    figures: dict[str, Any] = {
        "shape": _shape(chosen.shape),
        "stages": stages,
        "rows": rows_of(desk, chosen),
        "bottleneck_ms": round(bottleneck(desk, chosen), 4),
        "lower_bound_ms": round(proof.bound_ms, 4),
        "gap": round(max(0.0, 1 - proof.bound_ms / proof.value_ms) if proof.value_ms > 0 else 0.0, 4),
        "exact": proof.exact,
        **_bounds(proof),
        "cost_source": source_of(desk),
        **({"link_type": facts.link_type} if facts.link_type != "f32" and chosen.shape.stages > 1 else {}),
    }
    if facts.decoder:
        if any("backends_ms" in stage for stage in stages):
            kv_type = chosen.members[0][0].target.kv_type
            figures["compared"] = {"activations": facts.options.activations, "kv_type": kv_type}
        figures |= {
            "predicted_tokens_per_s": round(chosen.rate, 2),
            "predicted_tokens_per_s_one": round(chosen.single, 2),
            "predicted_ttft_ms": round(time_to_first(desk, chosen), 2),
        }
    else:
        figures |= {
            "predicted_items_per_s": round(chosen.rate, 2),
            "predicted_latency_ms": round(1e3 / chosen.single, 4),
        }
    return figures | {
        "alternatives": _alternatives(desk, choice),
        "rejected": [*map(dict, facts.rejected), *_too_small(desk)],
        "verdict": verdict(desk, choice),
    }


def _bounds(proof: Proof) -> dict[str, Any]:
    """Which bound is told, and what it is of, where that is not the slowest part.

    Both where not every cut was looked at: what the search has proved then holds for those only that were.
    """
    searched = proof.exact and proof.searched_ms >= proof.relaxed_ms
    found: dict[str, Any] = {"bound_by": "search" if searched else "relaxation"}
    if proof.aim != "throughput":
        found["bound_of"] = {f"{proof.aim}_ms": round(proof.value_ms, 4)}
    if not proof.exact and proof.searched_ms:
        found["bounds"] = {"relaxation": round(proof.relaxed_ms, 4), "search": round(proof.searched_ms, 4)}
    return found


def rows_of(desk: Desk, solution: Solution) -> int:
    """Rows of a step of the fullest pipeline with the planned sequences at work; 1 for a graph."""
    share = -(-solution.streams // solution.shape.replicas)
    return grouping(share, solution.shape.stages)[0] if desk.facts.decoder else 1


def bottleneck(desk: Desk, solution: Solution) -> float:
    """The time of the slowest stage or link, the head's work on a stage's cores included; of a step on average."""
    share = -(-solution.streams // solution.shape.replicas)
    load = load_of(desk.facts, share, solution.shape.replicas, solution.shape.stages)
    task = desk.task(load, solution.scene, "throughput")
    return max(evaluate(task, stages).bottleneck_ms for stages in solution.pipelines)


def source_of(desk: Desk) -> str:
    """``measured``, or ``scaled`` where any row is that the plan was chosen by."""
    for group in desk.room.groups:
        for beside in range(1, group.first.beside + 1):
            if any(map(desk.facts.costs.scaled, desk.room.prices.rows(group.first, beside))):
                return SCALED
    return "measured"


def stages_of(desk: Desk, solution: Solution) -> list[dict[str, Any]]:
    """One entry per stage of every pipeline, pipeline by pipeline."""
    found = []
    for number, (stages, members) in enumerate(zip(solution.pipelines, solution.members, strict=True)):
        sent = desk.crossing(stages)
        many = stage_times(desk, solution, stages, rows_of(desk, solution))
        one = stage_times(desk, solution, stages, 1, active=1)
        for place, (stage, member) in enumerate(zip(stages, members, strict=True)):
            units = [desk.facts.units[item] for item in stage.items]
            expected = expected_of(desk, solution, number, place)
            found.append(
                {
                    "pipeline": number,
                    "node": member.name,
                    "target": member.target.name,
                    "backend": member.target.backend,
                    **_choice(by_backend(desk, solution, stages, place, rows_of(desk, solution))),
                    "graph_nodes": sum(len(unit.nodes) for unit in units),
                    "weight_bytes": desk.facts.stored_bytes(stage.items),
                    "kv_bytes": _kv_bytes(desk, solution, stage),
                    "cut_bytes": 0 if place + 1 == len(stages) else sent[place + 1],
                    "predicted_ms": round(many[place], 4),
                    "predicted_ms_one": round(one[place], 4),
                    "predicted_rss_bytes": expected.bytes + _kv_bytes(desk, solution, stage),
                    "usable_bytes": usable(desk.facts, member, solution.scene),
                }
            )
    return found


def _choice(ms: Mapping[str, float]) -> dict[str, Any]:
    """What a stage takes on each back end that it could have, where it could have another."""
    return {"backends_ms": dict(ms)} if ms else {}


def expected_of(desk: Desk, solution: Solution, pipeline: int, place: int) -> Expected:
    """What the manifest says of a stage: its times over rows, and its memory without key/value space."""
    facts, stages = desk.facts, solution.pipelines[pipeline]
    stage, member = stages[place], solution.members[pipeline][place]
    share = -(-solution.streams // solution.shape.replicas)
    rows = sorted({*(each for each in (1, 2, 4, 8, 16, 32) if each <= share), share}) if facts.decoder else [1]
    chunks = [each for each in _CHUNKS if each <= facts.context] if facts.decoder else []
    return Expected(
        node=member.name,
        rows=rows,
        ms=[round(stage_times(desk, solution, stages, each)[place], 4) for each in rows],
        chunks=chunks,
        chunk_ms=[round(chunk_ms(desk, solution, stages, place, each, 0), 4) for each in chunks],
        backends_ms=by_backend(desk, solution, stages, place, rows_of(desk, solution)),
        weight_bytes=desk.sizes(desk.room.groups[stage.kind]).weights(stage.items),
        working_bytes=desk.working(stage.items) + logits_bytes(facts, stage.items, rows_of(desk, solution)),
        runtime_bytes=desk.room.prices.runtime_bytes(member),
    )


def _kv_bytes(desk: Desk, solution: Solution, stage: Stage) -> int:
    share = -(-solution.streams // solution.shape.replicas)
    return desk.sizes(desk.room.groups[stage.kind]).state(stage.items, share)


def _alternatives(desk: Desk, choice: Choice) -> list[dict[str, Any]]:
    """The other shapes; and where something was forced, what the plan would have done."""
    best = choice.best.shape if choice.best is not None else None
    found = [
        _entry(desk, choice.chosen, shape, solution, "the plan's own choice" if shape == best else "")
        for shape, solution in choice.others
    ]
    if choice.free is not None:
        found.append(_entry(desk, choice.chosen, choice.free.shape, choice.free, "the plan's own cut"))
    return found


def _entry(desk: Desk, chosen: Solution, shape: Shape, solution: Solution | None, own: str = "") -> dict[str, Any]:
    """What a shape would do; ``own``: what it is, where the plan would have taken it and something else was asked."""
    entry: dict[str, Any] = {"shape": _shape(shape), "fits": solution is not None}
    if solution is None:
        return entry | {"why": unfit(desk, shape)}
    what = "tokens" if desk.facts.decoder else "items"
    entry |= {f"{what}_per_s": round(solution.rate, 2), f"{what}_per_s_one": round(solution.single, 2)}
    if desk.facts.decoder:
        entry["ttft_ms"] = round(time_to_first(desk, solution), 2)
    else:
        entry["latency_ms"] = round(1e3 / solution.single, 4)
    told = f"{compared(desk, chosen, solution)}; {limit(desk, solution)}"
    return entry | {"why": f"{own}: {told}" if own else told}


def _too_small(desk: Desk) -> list[dict[str, str]]:
    """Nodes whose memory cannot hold any stage at all."""
    found = []
    scene = desk.widest(1)
    for pool in desk.room.pools:
        guises = [desk.room.groups[number] for number in pool]
        least = {group: min(desk.sizes(group).items(1, 1), default=0) for group in guises}
        if all(desk.memory(group, scene) < least[group] for group in guises):
            group = guises[0]
            own = desk.room.prices.runtime_bytes(group.first) + desk.activations
            wanted = f"{show_bytes(own + least[group])} for the smallest part"
            has = f"{show_bytes(usable(desk.facts, group.first, scene))} usable"
            found += [_rejected(member, wanted, has) for member in group.members]
    return found


def _rejected(member: Member, wanted: str, has: str) -> dict[str, str]:
    return {"node": member.name, "rule": "memory", "wanted": wanted, "has": has}


def _shape(shape: Shape) -> dict[str, int]:
    return {"replicas": shape.replicas, "stages": shape.stages}
