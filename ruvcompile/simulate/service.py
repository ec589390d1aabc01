"""The simulated service: one head, its pipelines, and what happens to them, in order of time.

An event is a moment at which the head may have something to decide: a request comes, a step is back, a node goes away
or returns, or the head has finished what it was busy with. What it hears while it is busy waits; when it is free it
takes in all of it and then sends what may go, as the real one does. Each step costs it ``head_ms`` before it leaves.

A request goes to a pipeline that has room for it: the one that holds the fewest sequences and, of those, the one with
the fewest prompt tokens to read; as the runtime's head chooses. While none has room requests wait, the oldest first.
Where sequences share space, each pipeline has those who wait for its own, and gives them to one that has room.
**When a node goes away**, its pipeline cannot work until every one of its nodes is there. What it computed is lost with
it, but the head has the tokens, so who was served goes on from these, at whichever pipeline is whole and before others
who came later: prompt and tokens are computed again, and the next one comes after a pause (``retries`` counts that).
Requests for which no pipeline ever comes back are ``lost``. If the head's node is away, nothing is served.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any

from ruvcompile.forecast import Forecast
from ruvcompile.simulate.load import Load, draw
from ruvcompile.simulate.nouns import Absence, Outcome
from ruvcompile.simulate.ring import HEAD, Ring, Span
from ruvcompile.simulate.shared import SharedTurns, level, turns_of
from ruvcompile.simulate.turns import Calls, Job, Turns

_ASKED, _RETURNED, _FREE, _AWAY, _BACK = range(5)


class _Pipeline:
    """A pipeline as the head knows it. ``epoch`` rises with each loss; ``away`` counts its nodes that are not there."""

    __slots__ = ("away", "epoch", "ring", "turns")

    def __init__(self, turns: Turns | Calls | SharedTurns, ring: Ring) -> None:
        self.turns, self.ring = turns, ring
        self.epoch, self.away = 0, 0


class Service:
    """All of it. ``run`` once.

    Args:
        forecast: what is expected of the fleet.
        load: what is asked.
        absences: which nodes are away when.
        until_ms: when to stop, whatever is unfinished then being neither finished nor lost.
        spans: where to note who works when.
        times: whether every job notes when each of its tokens came.
    """

    def __init__(
        self,
        forecast: Forecast,
        load: Load,
        absences: Sequence[Absence] = (),
        *,
        until_ms: float = math.inf,
        spans: list[Span] | None = None,
        times: bool = False,
    ) -> None:
        self._forecast, self._load, self._until = forecast, load, until_ms
        self._spans, self._times = spans, times
        self._draws = draw(load, forecast)
        self._pipelines = [self._pipeline(number) for number in range(len(forecast.pipelines))]
        self._beside_head = [pipeline.ring for pipeline in self._pipelines if pipeline.ring.beside_head]
        self._events: list[tuple[Any, ...]] = []
        self._numbered = 0
        self._heard: deque[tuple[Any, ...]] = deque()
        self._crowded: set[_Pipeline] = set()  # those at which somebody waits
        self._head_free = self._head_worked = 0.0
        self._head_ms = cache(forecast.head_ms)
        self._head_costs = any(ms for _, ms in forecast.head_ms.points)
        self._waiting: deque[Job] = deque()
        self._asked = self._came = self._steps = self._tokens = 0
        self._full: tuple[float, int, int, tuple[tuple[float, ...], ...], float] | None = None
        self._finished: list[Job] = []
        self._end = 0.0
        for absence in absences:
            self._schedule(absence.start_ms, _AWAY, absence.node)
            if absence.end_ms < math.inf:
                self._schedule(absence.end_ms, _BACK, absence.node)

    def run(self) -> Outcome:
        """From the first request to the last."""
        self._begin()
        events, heard = self._events, self._heard
        pop = heapq.heappop
        while events:
            event = pop(events)
            now = event[0]
            if now > self._until or len(self._finished) == self._load.requests:
                break
            alone = not (heard or self._crowded) and not (events and events[0][0] <= now)
            if alone and event[2] == _RETURNED and now >= self._head_free:  # the usual case, without detours
                pipeline, epoch, jobs, decode = event[3]
                if epoch == pipeline.epoch:
                    self._returned(now, pipeline, jobs, decode)
                    self._head_free = self._send(pipeline, now)
                continue
            if event[2] != _FREE:
                heard.append(event)
            if now < self._head_free:
                if len(heard) == 1 and event[2] != _FREE:
                    self._schedule(self._head_free, _FREE, None)
                continue
            while events and events[0][0] <= now:
                event = pop(events)
                if event[2] != _FREE:
                    heard.append(event)
            self._act(now)
        lost = [] if self._until < math.inf else self._unfinished()
        full_ms, tokens, steps, busy, head_ms = self._full or self._done(self._end)
        back = sum(pipeline.turns.put_backs for pipeline in self._pipelines)
        return Outcome(tuple(self._finished), tuple(lost), self._end, full_ms, tokens, steps, busy, head_ms, back)

    def _done(self, now: float) -> tuple[float, int, int, tuple[tuple[float, ...], ...], float]:
        """What was done in all until now."""
        busy = tuple(pipeline.ring.busy() for pipeline in self._pipelines)
        return now, self._tokens, self._steps, busy, self._head_worked

    def _act(self, now: float) -> None:
        """The head takes in what it has heard, then sends what may go."""
        heard = self._heard
        concerned: dict[_Pipeline, None] = {}
        while heard:
            _, _, kind, what = heard.popleft()
            if kind == _RETURNED:
                pipeline, epoch, jobs, decode = what
                if epoch == pipeline.epoch:
                    self._returned(now, pipeline, jobs, decode)
                    concerned[pipeline] = None
            elif kind == _ASKED:
                what.number, self._came = self._came, self._came + 1
                self._dispatch(what, concerned)
                if self._load.rate:
                    self._ask(now, what.user)
            else:
                self._changed(now, what, kind == _AWAY, concerned)
        if self._crowded:
            self._crowded = {each for each in self._crowded if each.turns.waiting}
            shared = {
                each.turns: each for each in self._pipelines if isinstance(each.turns, SharedTurns) and not each.away
            }
            concerned |= dict.fromkeys(shared[each] for each in level(shared))
        at = now
        for pipeline in concerned:
            at = self._send(pipeline, at)
        self._head_free = at

    def _send(self, pipeline: _Pipeline, at: float) -> float:
        """Send every step of a pipeline that may go, from a moment on; when the head is done with that."""
        next_step, send, events = pipeline.turns.next, pipeline.ring.send, self._events
        while (step := next_step()) is not None:
            jobs, rows, tokens = step
            if self._head_costs:
                takes = self._head_ms(rows + 1 if tokens else rows)
                self._work(at, takes, rows + tokens)
                at += takes
            self._steps += 1
            self._numbered += 1
            back = send(at, rows, tokens)
            heapq.heappush(events, (back, self._numbered, _RETURNED, (pipeline, pipeline.epoch, jobs, not tokens)))
        if pipeline.turns.waiting:
            self._crowded.add(pipeline)
        return at

    def _work(self, at: float, takes: float, rows: int) -> None:
        self._head_worked += takes
        for ring in self._beside_head:
            ring.head_works(at, takes)
        if self._spans is not None:
            self._spans.append(Span(HEAD, HEAD, self._forecast.head_node, at, at + takes, "head", rows))

    def _returned(self, now: float, pipeline: _Pipeline, jobs: list[Job], decode: bool) -> None:
        turns = pipeline.turns
        came, done = turns.returned(jobs, decode, now)
        if self._times:
            for job in came:
                job.times.append(now)
        self._tokens += len(came)
        if not done:
            return
        self._end = now
        self._finished += done
        if self._load.users:
            for job in done:
                self._ask(now, job.user)
        while self._waiting and turns.has_room:
            turns.add(self._waiting.popleft())

    def _dispatch(self, job: Job, concerned: dict[_Pipeline, None]) -> None:
        """To the pipeline with the least to do; of several, the first."""
        best, least = None, (0, 0)
        if not self._waiting:
            for pipeline in self._pipelines:
                if not pipeline.away and pipeline.turns.has_room:
                    load = pipeline.turns.load
                    if best is None or load < least:
                        best, least = pipeline, load
                        if not load[0]:
                            break
        if best is None:
            self._waiting.append(job)
            return
        best.turns.add(job)
        if best.turns.waiting:
            self._crowded.add(best)
        concerned[best] = None

    def _changed(self, now: float, node: str, away: bool, concerned: dict[_Pipeline, None]) -> None:
        """A node went away or came back."""
        go_on: list[Job] = []
        for pipeline, expected in zip(self._pipelines, self._forecast.pipelines, strict=True):
            if node not in (self._forecast.head_node, *(stage.node for stage in expected.stages)):
                continue
            pipeline.away += 1 if away else -1
            pipeline.ring.clear(now)
            if away and pipeline.away == 1:
                pipeline.epoch += 1
                concerned.pop(pipeline, None)
                go_on += pipeline.turns.clear()
        for job in go_on:
            job.begin()
            job.retries += 1
        waiting = sorted([*go_on, *self._waiting], key=lambda job: job.number)
        self._waiting.clear()
        for job in waiting:
            self._dispatch(job, concerned)

    def _begin(self) -> None:
        """The first request of each user, or of a rate: each schedules the next one."""
        for user in range(max(1, self._load.users)):
            self._ask(0.0, user)

    def _ask(self, now: float, user: int) -> None:
        """Schedule the next request of a user or a rate, while any are left to be made."""
        number = self._asked
        if number == self._load.requests:
            return
        self._asked += 1
        if self._asked == self._load.requests and now:
            self._full = self._done(now)
        at = now + self._draws.pauses[number] if self._load.users else self._draws.arrivals[number]
        job = Job(number, at, self._draws.prompts[number], self._draws.answers[number], user)
        self._schedule(at, _ASKED, job)

    def _schedule(self, at: float, kind: int, what: object) -> None:
        self._numbered += 1
        heapq.heappush(self._events, (at, self._numbered, kind, what))

    def _unfinished(self) -> list[Job]:
        """What still waits when nothing can happen any more."""
        return [*self._waiting, *(job for pipeline in self._pipelines for job in pipeline.turns.clear())]

    def _pipeline(self, number: int) -> _Pipeline:
        forecast = self._forecast
        ring = Ring(forecast.pipelines[number], number, forecast.head_node, forecast.decoder, self._spans)
        return _Pipeline(turns_of(forecast, number), ring)


def simulate(forecast: Forecast, load: Load, absences: Sequence[Absence] = ()) -> Outcome:
    """What becomes of ``load`` on the fleet of ``forecast`` while the nodes of ``absences`` are away."""
    return Service(forecast, load, absences).run()
