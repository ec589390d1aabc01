"""What a planned fleet would do for its users: a discrete-event simulation from the plan's forecast.

1. ``load``      who asks what, and when: drawn from a seed, all of it beforehand
2. ``turns``     which sequences form a pipeline's next step: the rules of the runtime's engine; where sequences share
                 space, the engine itself (``shared``)
3. ``ring``      when that step is on which link and stage, and when it is back: arithmetic, not events
4. ``service``   the head and all its pipelines in order of time; nodes that go away and come back
5. ``figures``, ``away``, ``timeline``   what that means

**Why no simulation library.** The same model in simpy 4.1.2 (a process for every stage and every direction of a link,
joined by stores) took 84 microseconds of a core for each step of four stages, and 4.4 here: 1,000 nodes that serve
100,000 requests of about 128 tokens take 7 million steps, which would be ten minutes. Nearly all of it were events that
decide nothing: a message that leaves a server finds its way by a maximum and a sum (``ring``). What is left is one
event for each step, and a heap of the standard library holds those.

Everything is a function of forecast, load and absences: the same numbers come out every time.
"""

from __future__ import annotations

from typing import Any

from ruvcompile.forecast import Forecast
from ruvcompile.options import Options
from ruvcompile.simulate.away import in_time, limit_ms, nodes_may_be_away
from ruvcompile.simulate.figures import figures
from ruvcompile.simulate.load import Lengths, Load
from ruvcompile.simulate.nouns import Absence, Outcome
from ruvcompile.simulate.ring import HEAD, Span
from ruvcompile.simulate.service import simulate
from ruvcompile.simulate.timeline import timeline

USERS = 30
THINK_MS = 10_000.0
MAX_TOKENS = 128
SPREAD = 0.5
EACH = 20
LEAST = 2000


def simulation(
    forecast: Forecast, users: int | None, prompt_tokens: int, max_tokens: int | None = None, seed: int = 0
) -> dict[str, Any]:
    """``users`` people use the planned fleet: the ``simulation`` of ``plan --simulate``.

    Each makes some 20 requests (at least 2,000 are made by all of them), with a pause of 10 s in the mean before each.
    Prompts and answers are ``prompt_tokens`` and ``max_tokens`` long in the mean, with half of that as deviation. Where
    nothing is said, there are 30 people, and answers have 128 tokens.
    """
    people = users or USERS
    prompt, answer = Lengths(prompt_tokens, SPREAD), Lengths(max_tokens or MAX_TOKENS, SPREAD)
    load = Load(max(LEAST, EACH * people), prompt, answer, users=people, think_ms=THINK_MS, seed=seed)
    outcome = simulate(forecast, load)
    limit = limit_ms(forecast, load)
    served = in_time(outcome, limit)
    return {
        **figures(forecast, load, outcome),
        "nodes_may_be_away": nodes_may_be_away(forecast, load, limit) if served else 0,
        "in_time": served,
        "in_time_ms": round(limit, 3),
    }


def simulated(forecast: Forecast, options: Options) -> dict[str, Any]:
    """What ``plan`` adds to its figures: nothing, unless a simulation was asked for."""
    if not options.simulate:
        return {}
    return {"simulation": simulation(forecast, options.users, options.prompt_tokens, options.max_tokens)}


__all__ = [
    "HEAD",
    "USERS",
    "Absence",
    "Lengths",
    "Load",
    "Outcome",
    "Span",
    "figures",
    "simulate",
    "simulated",
    "simulation",
    "timeline",
]
