"""Turns where sequences share their space: by the runtime's own engine, which alone knows who fits and who is put back.

In a pipeline whose stages all have their space in blocks a request does not wait for a slot. It is let in by the blocks
that its prompt needs and that those who run may still want; some that need less may pass it; and where the pool runs
dry the youngest is put back and computed again. Rules of a simulation's own, as ``turns`` has them for slots, would be
all of these a second time; and so would those for steps that have both rows that decode and a chunk of a prompt, which
only such pipelines have. So here the engine itself is driven, with tokens that mean nothing. It takes some five
times as long for a step (132,000 steps of 40 nodes with eight streams for each pipeline of four, on a core that others
used, too: 22 to 27 microseconds, and 4.4 to 6.0 by those rules), and only where there is a pool: then for all pipelines
of a fleet, since who waits at a full one is given to whichever has room, with the tokens it has (``level``).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from ruvcompile.forecast import Forecast, PipelineForecast
from ruvcompile.simulate.turns import Calls, Job, Step, Turns
from ruvrun import frames
from ruvrun.engine import Engine, Request, Sequence
from ruvrun.engine.groups import groups_of
from ruvrun.manifest.blocks import sequences_of

_ANY = frames.Sampling(temperature=0.0, top_p=1.0, seed=0)


class SharedTurns:
    """As ``Turns``, by an ``Engine``; who does not fit waits here.

    Args:
        forecast: of the fleet.
        pipeline: which of its pipelines.
        streams: sequences that may be at work.
        groups: how many of them 1, 2, ... sequences form that decode.
    """

    has_room = True

    def __init__(self, forecast: Forecast, pipeline: PipelineForecast, streams: int, groups: tuple[int, ...]) -> None:
        self.engine = Engine(
            stages=len(pipeline.stages),
            context=forecast.context,
            streams=streams,
            chunk=forecast.chunk,
            beside=pipeline.beside,
            groups=groups,
            ragged=pipeline.ragged,
            pool=pipeline.pool,
        )
        self._jobs: dict[int, Job] = {}
        self._ring: deque[frames.Step] = deque()

    @property
    def load(self) -> tuple[int, int]:
        """What it holds: sequences, those that wait included, and prompt tokens that were not sent yet."""
        return self.engine.running + self.engine.waiting, self.engine.unread

    @property
    def waiting(self) -> int:
        """Who does not fit."""
        return self.engine.waiting

    @property
    def put_backs(self) -> int:
        """How often a sequence was put back."""
        return self.engine.put_backs

    def clear(self) -> list[Job]:
        """Nothing runs or waits any more: what did, the oldest first."""
        gone = [self._jobs[each.request.id] for each in self.engine.abandon()]
        self._jobs.clear()
        self._ring.clear()
        return gone

    def add(self, job: Job) -> None:
        """Take a request, behind those that came before it, with the tokens that it has."""
        request = Request(job.number, (0,) * job.prompt, job.answer, _ANY, frozenset())
        self.take(job, Sequence(request, [0] * (job.prompt + job.again)))

    def take(self, job: Job, sequence: Sequence) -> None:
        """Take what another one gave away."""
        self._jobs[job.number] = job
        self.engine.resume(sequence)

    def withdraw(self) -> tuple[Job, Sequence]:
        """Give away who waits the longest."""
        sequence = self.engine.withdraw()
        return self._jobs.pop(sequence.request.id), sequence

    def next(self) -> Step | None:
        """The next step to send, None where none may go now; it counts as sent."""
        while (sent := self.engine.step()) is not None:
            message = sent[0]
            if isinstance(message, frames.Step):
                self._ring.append(message)
                due = [self._jobs[each.id] for each in message.seqs if each.rows]
                rows = sum(each.position >= self._jobs[each.id].prompt for each in message.seqs)
                return due, rows, sum(each.count for each in message.seqs) - rows
        return None

    def returned(self, _jobs: list[Job], _decode: bool, now: float, /) -> tuple[list[Job], list[Job]]:
        """The oldest step in the ring is back: whose tokens came, who was not put back meanwhile; and who is done."""
        step = self._ring.popleft()
        due = tuple((each.id, (0,)) for each in step.seqs if each.rows)
        came, done = [], []
        for token in self.engine.receive(frames.Sampled(step.epoch, step.step, due)):
            job = self._jobs[token.id]
            came.append(job)
            job.left -= 1
            if job.first is None:
                job.first = now
            if token.finish:
                job.done = now
                done.append(self._jobs.pop(token.id))
        return came, done


def level(pipelines: Collection[SharedTurns]) -> list[SharedTurns]:
    """Give the room there is to those who wait at a full pipeline, the oldest first, as the runtime's head does; where
    somebody came.
    """
    found: list[SharedTurns] = []
    for turns in pipelines:
        while turns.engine.has_room:
            full = [each for each in pipelines if each.engine.waiting and not each.engine.has_room]
            if not full:
                return found
            turns.take(*min(full, key=lambda each: each.engine.first_waiting or 0).withdraw())
            found.append(turns)
    return found


def turns_of(forecast: Forecast, number: int) -> Turns | Calls | SharedTurns:
    """What decides in a pipeline: rules for slots or for calls of a graph, or the engine where any has a pool."""
    pipeline = forecast.pipelines[number]
    stages, pool = len(pipeline.stages), pipeline.pool
    if not forecast.decoder:
        return Calls(stages)
    streams = sequences_of(forecast.streams) if pool else forecast.streams
    groups = groups_of([[stage.step_ms(rows) for rows in range(1, streams + 1)] for stage in pipeline.stages])
    if any(each.pool or each.ragged for each in forecast.pipelines):
        return SharedTurns(forecast, pipeline, streams, groups)
    return Turns(stages, streams, forecast.chunk, groups, pipeline.beside)
