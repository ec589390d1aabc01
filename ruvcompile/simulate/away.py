"""How many nodes may be away before a service is no longer good enough.

A pipeline needs all of its nodes, so the worst that k nodes can do by being away is to be of k pipelines, those that
serve the most. The head's node is not counted: without it nothing is served at all, and a pipeline that has no other
node cannot be lost before. What the nodes of a broken pipeline could do in another one, after a new build, is not
counted either.

A service is good enough while every request is served and 95 of 100 first tokens come in time: within twice the time
that they take somebody who is alone with the whole fleet; ten seconds are always in time for a first token, one second
for a call of a graph. (After a second people notice that they wait, after ten they turn to something else: J. Nielsen,
Usability Engineering, 1993, chapter 5.) Where not even all nodes serve everybody in time, none may be away.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ruvcompile.forecast import Forecast, PipelineForecast
from ruvcompile.simulate.figures import percentile, waits
from ruvcompile.simulate.load import Load
from ruvcompile.simulate.nouns import Absence, Outcome
from ruvcompile.simulate.service import simulate

ALWAYS_IN_TIME_MS = 10_000.0
ALWAYS_IN_TIME_CALL_MS = 1_000.0
SLOWER = 2.0
ALONE = 100


def limit_ms(forecast: Forecast, load: Load) -> float:
    """What the 95th percentile of the time to the first token may be."""
    alone = replace(load, requests=ALONE, users=1, think_ms=0.0, rate=0.0)
    least = ALWAYS_IN_TIME_MS if forecast.decoder else ALWAYS_IN_TIME_CALL_MS
    return max(least, SLOWER * percentile(waits(simulate(forecast, alone)), 95))


def in_time(outcome: Outcome, limit: float) -> bool:
    """Whether everybody was served within ``limit`` ms, but for one in twenty."""
    return not outcome.lost and percentile(waits(outcome), 95) <= limit


def nodes_may_be_away(forecast: Forecast, load: Load, limit: float) -> int:
    """The most nodes that may be away, whichever they are, with ``load`` still served within ``limit`` ms.

    With none away it is; the caller has seen that. Fewer nodes away are never worse, so the number is found by halving.
    Where every pipeline that can be broken may be, those of the head's node alone serve everybody, and all other nodes
    may be away.
    """
    worst = _worst(forecast)
    good, bad = 0, len(worst) + 1
    while bad - good > 1:
        tried = (good + bad) // 2
        outcome = simulate(forecast, load, [Absence(node) for node in worst[:tried]])
        if in_time(outcome, limit):
            good = tried
        else:
            bad = tried
    if good < len(worst):
        return good
    return sum(stage.node != forecast.head_node for pipeline in forecast.pipelines for stage in pipeline.stages)


def _worst(forecast: Forecast) -> list[str]:
    """A node of each pipeline, those that serve the most first; none of a pipeline that is the head's node alone."""
    order = sorted(forecast.pipelines, key=lambda pipeline: -_rate(forecast, pipeline))
    found = []
    for pipeline in order:
        others = [stage.node for stage in pipeline.stages if stage.node != forecast.head_node]
        if others:
            found.append(others[0])
    return found


def _rate(forecast: Forecast, pipeline: PipelineForecast) -> float:
    """Sequences per ms of a round with all slots in use: a step carries as many as let each stage have one."""
    stages = len(pipeline.stages)
    rows = math.ceil(forecast.streams / stages) if forecast.decoder else 1
    steps = math.ceil(forecast.streams / rows) if forecast.decoder else 2 * stages
    slowest = max(stage.step_ms(rows) for stage in pipeline.stages)
    once = sum(stage.step_ms(rows) for stage in pipeline.stages) + sum(hop.ms(rows) for hop in pipeline.hops)
    return steps * rows / max(steps * slowest, once + forecast.head_ms(rows), 1e-9)
