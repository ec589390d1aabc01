"""What a plan promises, as the JSON of ``plan`` and ``build``: per stage, in all, the alternatives, the verdict.

Throughput is that of the slowest stage once there are as many sequences in flight as stages. One user alone waits
for the sum of all stages at every token, which is why a model that one node can hold serves a single user best on
one node; the verdict says so.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ruvcompile.partition.chain import evaluate, solve
from ruvcompile.partition.problem import Partition, Problem
from ruvcompile.plan.problem import Facts

SCALED = "scaled"
# Tokens of a prompt that the engine puts into one step.
PROMPT_CHUNK = 256


def figures_of(facts: Facts, problem: Problem, partition: Partition) -> dict[str, Any]:
    """The JSON object, without what only a build knows."""
    rate, latency = 1e3 / partition.bottleneck_ms, partition.latency_ms + facts.hops_ms(len(problem.devices))
    figures: dict[str, Any] = {
        "shape": {"replicas": 1, "stages": len(problem.devices)},
        "stages": _stages(facts, problem, partition),
        "bottleneck_ms": round(partition.bottleneck_ms, 4),
        "lower_bound_ms": round(partition.bound_ms, 4),
        "gap": round(partition.gap, 4),
        "cost_source": _source(facts),
    }
    if facts.program.decoder is not None:
        figures |= {
            "predicted_tokens_per_s": round(rate, 2),
            "predicted_tokens_per_s_one": round(1e3 / latency, 2),
            "predicted_ttft_ms": round(_prompt_ms(facts, partition) + latency, 2),
        }
    else:
        figures |= {"predicted_items_per_s": round(rate, 2), "predicted_latency_ms": round(latency, 4)}
    return figures | {
        "alternatives": _alternatives(facts, problem, partition),
        "rejected": [],
        "verdict": _verdict(facts, problem, rate, 1e3 / latency),
    }


def _stages(facts: Facts, problem: Problem, partition: Partition) -> list[dict[str, Any]]:
    bounds = [0, *partition.cuts, len(facts.units)]
    found = []
    for number, member in enumerate(facts.members):
        held = facts.units[bounds[number] : bounds[number + 1]]
        last = number + 1 == len(facts.members)
        found.append(
            {
                "pipeline": 0,
                "node": member.node.name,
                "target": member.target.name,
                "backend": member.target.backend,
                "graph_nodes": sum(len(unit.nodes) for unit in held),
                "weight_bytes": facts.stored_bytes(held),
                "kv_bytes": sum(facts.state_bytes(unit) for unit in held),
                "cut_bytes": 0 if last else problem.borders[bounds[number + 1] - 1].wire_bytes,
                "predicted_ms": round(partition.stage_ms[number], 4),
                "predicted_rss_bytes": partition.stage_bytes[number],
            }
        )
    return found


def _source(facts: Facts) -> str:
    """``measured``, or ``scaled`` where any row of the fleet's targets is."""
    names = {member.target.name for member in facts.members}
    sources = [facts.costs.provenance[row.source].software for row in facts.costs.unit if row.target in names]
    return SCALED if any(text.startswith(SCALED) for text in sources) else "measured"


def _prompt_ms(facts: Facts, partition: Partition) -> float:
    """A prompt of ``--prompt-tokens`` through all stages: while one works on a chunk, the one before has the next."""
    bounds = [0, *partition.cuts, len(facts.units)]
    per_token = [
        sum(row.ms_per_token for row in facts.rows(member)[bounds[number] : bounds[number + 1]])
        for number, member in enumerate(facts.members)
    ]
    chunks = math.ceil(facts.options.prompt_tokens / PROMPT_CHUNK)
    return facts.options.prompt_tokens / chunks * (sum(per_token) + (chunks - 1) * max(per_token))


def _alternatives(facts: Facts, problem: Problem, chosen: Partition) -> list[dict[str, Any]]:
    """Fewer nodes than were named; and the best cut, where another one was forced."""
    rate = "tokens_per_s" if facts.program.decoder is not None else "items_per_s"
    found: list[dict[str, Any]] = []
    for stages in range(1, len(problem.devices)):
        fewer = solve(replace(problem, devices=problem.devices[:stages]))
        entry: dict[str, Any] = {"shape": {"replicas": 1, "stages": stages}, "fits": fewer is not None}
        if fewer is None:
            entry["why"] = "does not fit into the memory of that many nodes"
        else:
            many, one = 1e3 / fewer.bottleneck_ms, 1e3 / (fewer.latency_ms + facts.hops_ms(stages))
            entry |= {rate: round(many, 2), f"{rate}_one": round(one, 2)}
            entry["why"] = f"{many:.1f}/s with {stages} or more in flight, {one:.1f}/s with one"
            if stages == 1:
                entry["why"] = f"{many:.1f}/s"
        found.append(entry)
    best = solve(problem)
    if best is not None and best.cuts != chosen.cuts:
        slower = 100 * (chosen.bottleneck_ms / best.bottleneck_ms - 1)
        found.append(
            {
                "shape": {"replicas": 1, "stages": len(problem.devices)},
                "fits": True,
                rate: round(1e3 / best.bottleneck_ms, 2),
                f"{rate}_one": round(1e3 / (best.latency_ms + facts.hops_ms(len(problem.devices))), 2),
                "why": f"the plan's own cut; the forced one makes the slowest stage {slower:.1f} % slower",
            }
        )
    return found


def _verdict(facts: Facts, problem: Problem, rate: float, single: float) -> str:
    """One sentence; ``rate`` is per second with as many in flight as stages, ``single`` with one."""
    what = "tokens" if facts.program.decoder is not None else "items"
    stages, alone = len(problem.devices), 1e3 / sum(problem.devices[0].unit_ms)
    if stages == 1:
        return f"one node: {rate:.1f} {what}/s"
    (needs,) = evaluate(replace(problem, devices=problem.devices[:1]), ()).stage_bytes
    if needs > problem.devices[0].memory:
        return f"{stages} stages: the model does not fit on one node; {rate:.1f} {what}/s with {stages} in flight"
    if rate <= alone:
        return f"one node is faster: {alone:.1f} {what}/s against {rate:.1f} with {stages} stages"
    return (
        f"{stages} stages give {rate / alone:.2f}x the {what}/s of one node when {stages} or more are in flight; "
        f"a single user gets {single:.1f} {what}/s, and {alone:.1f} from one node"
    )
