"""Which of several pipelines gets a new request.

The pipelines of a manifest compute the same, so any will do, and the best is the one that has the least to do: there a
sequence shares its steps with the fewest others, and waits behind the fewest. What counts is how many sequences (or
calls) a pipeline holds, those that wait for space included. Tokens still to do would be no better a measure: most
requests end long before the number of tokens that they allow, and a step costs little more for a long sequence than for
a short one. But prompts that are still to be read stand before everyone else's next token, so among those that hold
equally many sequences it is the one with the shortest prompts to read; then the first.

A sequence that has begun stays where it is: its key/value space is there. One that waits has nothing anywhere, so it
waits for the first pipeline that has room (``level``), and goes on waiting elsewhere when its pipeline is lost
(``leave``). Both look at nothing but who waits, and cost next to nothing while nobody does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ruvrun.engine import Engine
from ruvrun.pipeline.calls import Calls
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


def level(lanes: Sequence[Lane]) -> None:
    """Give the room there is to those who wait at a full pipeline, the oldest request first (ids are counted)."""
    for lane in lanes:
        while lane.ready and lane.work.has_room:
            full = [(first, each) for each in lanes if (first := _first_at_full(each)) is not None]
            if not full:
                return
            _hand_over(min(full, key=lambda entry: entry[0])[1], lane)


def leave(lost: Lane, lanes: Iterable[Lane]) -> None:
    """Those who wait at a pipeline that was lost go on waiting at others, as long as there is one."""
    while lost.work.waiting and (other := least_busy(lanes)) is not None:
        _hand_over(lost, other)


def _first_at_full(lane: Lane) -> int | None:
    return None if lane.work.has_room else lane.work.first_waiting


def _hand_over(source: Lane, target: Lane) -> None:
    """Let the request that waits the longest at ``source`` be one of ``target``."""
    if isinstance(source.work, Engine) and isinstance(target.work, Engine):
        request = source.work.withdraw()
        target.work.add(request)
        target.callers[request.id] = source.callers.pop(request.id)
    elif isinstance(source.work, Calls) and isinstance(target.work, Calls):
        target.work.add(source.work.withdraw())
