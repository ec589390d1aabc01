"""Which of several pipelines gets a new request.

The pipelines of a manifest compute the same, so any will do, and the best is the one that has the least to do: there a
sequence shares its steps with the fewest others, and waits behind the fewest. What counts is how many sequences (or
calls) a pipeline holds, those that wait for space included. Tokens still to do would be no better a measure: most
requests end long before the number of tokens that they allow, and a step costs little more for a long sequence than for
a short one. But prompts that are still to be read stand before everyone else's next token, so among those that hold
equally many sequences it is the one with the shortest prompts to read; then the first. What a pipeline still has of the
new prompt (the chat's earlier turns, the same instructions) need not be read there; more than half of it is worth one
more sequence in its company.

A sequence that has begun stays where it is: its key/value space is there. One that waits has nothing anywhere, so it
waits for the first pipeline that has room (``level``), which looks at nothing but who waits, and costs next to nothing
while nobody does.

When a pipeline is lost, or a step in it, all that it had goes on at the others, as long as there is one (``leave``):
those that waited go on waiting, calls are made again, and what was computed of a sequence is computed again from its
tokens, so that its client sees a pause. Where there is no other, all of it waits for the lost stage, and goes on at
whichever pipeline is whole first (``come_back``); for a bounded time, then it ends (``overdue``). One thing must not be
passed on for ever, which is the request that kills every stage it comes to. So who was under way ``MOST_LOSSES`` times
when a pipeline was lost ends with the last of them; two that are lost in turn cost everybody else no more than two
pauses.

A pipeline whose stages all say that they are ready, and which does not answer ``MOST_MISSED`` times in a row, does not
come back by itself. Where no other one serves either, that ends the head: whoever started it starts it again, and all
links with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from ruvrun.engine import Engine, Sequence
from ruvrun.errors import UnreachableError
from ruvrun.pipeline.calls import Call
from ruvrun.pipeline.lane import Lane, Told

MOST_LOSSES = 3
MOST_MISSED = 3


def least_busy(lanes: Iterable[Lane], prompt: tuple[int, ...] = ()) -> Lane | None:
    """The lane that should get the next request, with this prompt; None while no pipeline is whole."""
    best: Lane | None = None
    least = (0, 0)
    for lane in lanes:
        if lane.ready:
            work = lane.work
            load = work.running + work.waiting + len(lane.kept), 0
            if isinstance(work, Engine):
                known = work.known(prompt)
                load = load[0] - (2 * known > len(prompt)), work.unread - known
            if best is None or load < least:
                best, least = lane, load
    return best


def level(lanes: Collection[Lane]) -> None:
    """Give the room there is to those who wait at a full pipeline, the oldest request first (ids are counted)."""
    for lane in lanes:
        while lane.ready and lane.work.has_room:
            full = [(first, each) for each in lanes if (first := _first_at_full(each)) is not None]
            if not full:
                return
            source = min(full, key=lambda entry: entry[0])[1]
            _give(source.work.withdraw(), source, lane)


def leave(lost: Lane, lanes: Collection[Lane], why: str) -> Told:
    """A pipeline was lost, or what it computed was: that goes on at others, or there once it is back; whom to tell,
    whose request ends.
    """
    others = [lane for lane in lanes if lane is not lost]
    elsewhere = least_busy(others) is not None
    stay: list[Sequence | Call] = []
    for each in lost.abandon():
        if each.losses >= MOST_LOSSES or not (elsewhere or lost.absence):
            lost.take(each)
        elif elsewhere:
            _pass_on(each, lost, others)
        else:
            stay.append(each)
    told = lost.lose(why)
    lost.keep(stay, why)
    return told


def come_back(lane: Lane, lanes: Collection[Lane]) -> None:
    """Every stage of this pipeline is ready: who was kept goes on, those of pipelines that are not whole, too."""
    lane.ready = True
    lane.go_on()
    for other in lanes:
        if other.kept and not other.ready:
            for each in other.abandon():
                _pass_on(each, other, lanes)


def overdue(lane: Lane, lanes: Collection[Lane], now: float) -> Told:
    """What is to be done about an answer or a stage that should be there by now; whom to tell.

    Raises:
        UnreachableError: no pipeline answers any more, though all stages of one are ready.
    """
    if lane.due is None or now < lane.due:
        return []
    if not lane.kept:
        lane.missed += 1
        why = f"no stage answered for {lane.patience:.0f} s"
        if min(each.missed for each in lanes if each.ready or each is lane) >= MOST_MISSED:
            raise UnreachableError("no-answer", f"{why}, {lane.missed} times in a row", hint="see `ruvrun status`")
        return leave(lane, lanes, why)
    if not lane.ready:
        return lane.give_up()
    lane.go_on()
    return []


def _first_at_full(lane: Lane) -> int | None:
    return None if lane.work.has_room else lane.work.first_waiting


def _pass_on(work: Sequence | Call, source: Lane, lanes: Iterable[Lane]) -> None:
    """Give to the pipeline with the least to do; one of them is whole."""
    target = least_busy(lanes, work.request.prompt if isinstance(work, Sequence) else ())
    assert target is not None
    _give(work, source, target)


def _give(work: Sequence | Call, source: Lane, target: Lane) -> None:
    """Let what ``source`` had be of ``target``."""
    target.take(work)
    if isinstance(work, Sequence):
        target.callers[work.request.id] = source.callers.pop(work.request.id)
