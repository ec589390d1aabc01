"""Which of several pipelines gets a new request.

The pipelines of a manifest compute the same, so any will do, and the best is the one that has the least to do: there a
sequence shares its steps with the fewest others, and waits behind the fewest. What counts is how many sequences (or
calls) a pipeline holds, those that wait for space included. Tokens still to do would be no better a measure: most
requests end long before the number of tokens that they allow, and a step costs little more for a long sequence than for
a short one. But prompts that are still to be read stand before everyone else's next token, so among those that hold
equally many sequences it is the one with the shortest prompts to read; then the first.

Choosing happens once per request, never per token, and a sequence stays where it began: its key/value space is there.
"""

from __future__ import annotations

from collections.abc import Iterable

from ruvrun.engine import Engine
from ruvrun.pipeline.lane import Lane


def least_busy(lanes: Iterable[Lane]) -> Lane | None:
    """The lane that should get the next request; None while no pipeline is whole."""
    best: Lane | None = None
    least = (0, 0)
    for lane in lanes:
        if lane.ready:
            work = lane.work
            load = work.running + work.waiting, work.unread if isinstance(work, Engine) else 0
            if best is None or load < least:
                best, least = lane, load
    return best
