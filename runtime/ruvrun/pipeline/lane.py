"""One pipeline as the head's driver sees it: its work, who waits for what of it, and what is under way in its ring.

A manifest may hold several pipelines. Each is a ring of its own, with its own engine (or calls), its own numbers and
epochs, and its own deadline, and what goes wrong in one is no affair of the others. What they share (the thread, the
links' one socket, the numbers of requests) is the driver's, which also holds the lock under which everything here is
called.

**A loss** takes what the stages hold, which the tokens here can make again, so whoever no other pipeline takes is
``kept``: nothing is sent until every stage is ready again, then all go on from their tokens, together. A stage has
``absence`` seconds to come back. Where a step failed and no stage went, they go on after ``PAUSE``: a stage that cannot
pass a step on says first that it could not, and then that its neighbour is gone, and those two are one loss.

Every step of every sequence passes here, with its caches cold, so its way is short: ``next``, ``sampled`` and what they
call are plain loops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from ruvrun.elements import Tensors
from ruvrun.engine import Engine, Lost, Sequence, Token
from ruvrun.errors import IntegrityError, UnreachableError
from ruvrun.frames import Failed, Ring, Run, Sampled, Step
from ruvrun.manifest import Manifest
from ruvrun.pipeline.calls import Call, Calls

Event = Token | Lost
OnEvent = Callable[[Event], None]
Told = list[tuple[OnEvent, Event]]

PAUSE = 2.0  # by then a link's heartbeat has told of a neighbour that stands still
# Of a stage that comes back: a process that is started again, and bytes that are hashed, read and packed in a second.
_RESTART = 30.0
_LOADED = 50e6
_log = logging.getLogger("ruvrun")


class Lane:
    """One pipeline of a manifest, in the head.

    Args:
        number: which one of the manifest.
        work: the engine of a decoder, or the calls of a graph.
        patience: seconds that a step may take, however busy the machines are.
        absence: seconds that a lost stage has to come back; 0: nobody waits for it.
    """

    __slots__ = (
        "_epoch",
        "_in_ring",
        "_why",
        "absence",
        "callers",
        "due",
        "kept",
        "missed",
        "number",
        "patience",
        "ready",
        "work",
    )

    def __init__(self, number: int, work: Engine | Calls, patience: float, absence: float = 0.0) -> None:
        self.number = number
        self.work = work
        self.patience = patience
        self.absence = absence
        self.ready = False
        self.callers: dict[int, OnEvent] = {}
        # Who goes on here after a loss.
        self.kept: list[Sequence | Call] = []
        # When an answer must be there, or a stage be back; None while nothing is in the ring, and nobody kept.
        self.due: float | None = None
        # How often in a row no answer came in time.
        self.missed = 0
        self._why = ""
        self._epoch = work.epoch
        self._in_ring = 0

    def next(self) -> list[tuple[Ring, Tensors]]:
        """Everything that can be sent now."""
        outgoing: list[tuple[Ring, Tensors]] = []
        if not self.ready or self.kept:
            return outgoing
        step = self.work.step
        while (sent := step()) is not None:
            outgoing.append(sent)
            message = sent[0]
            self._epoch = message.epoch
            kind = type(message)
            if kind is Step or kind is Run:  # what is under way, for the deadline
                self._in_ring += 1
                if self.due is None:
                    self.due = time.monotonic() + self.patience
        return outgoing

    def sampled(self, message: Sampled, told: Told) -> None:
        """The usual answer: tokens, for those whom ``told`` then lists."""
        if not isinstance(self.work, Engine) or not self._returned(message.epoch):
            return
        try:
            tokens = self.work.receive(message)
        except IntegrityError as error:
            told += self.lose(str(error))
            return
        callers = self.callers
        for token in tokens:
            caller = callers.get(token.id)
            if caller is not None:
                told.append((caller, token))
                if token.finish is not None:
                    del callers[token.id]

    def ran(self, message: Run, tensors: Tensors) -> None:
        """The answer to a call of a graph."""
        if isinstance(self.work, Calls) and self._returned(message.epoch):
            self.work.receive(message, tensors)

    def failed(self, message: Failed) -> str:
        """Why nothing here goes on: a stage could not run a step. Empty where that step was of an earlier epoch: it has
        been dealt with when that ended.
        """
        if message.epoch == self._epoch and self._in_ring:
            return f"{message.node} could not run a step: {message.why}"
        return ""

    def cancel(self, id: int) -> bool:
        """Forget a request; False when it is none of ours."""
        if self.callers.pop(id, None) is None:
            return False
        if isinstance(self.work, Engine):
            self.work.cancel(id)
            if self.kept:
                self.keep([each for each in self.kept if isinstance(each, Sequence) and each.request.id != id])
        return True

    def take(self, each: Sequence | Call) -> None:
        """Take what another lane gave away, or what was kept here."""
        if isinstance(each, Sequence):
            assert isinstance(self.work, Engine)
            self.work.resume(each)
        else:
            assert isinstance(self.work, Calls)
            self.work.add(each)

    def abandon(self) -> list[Sequence | Call]:
        """What was computed is lost, and a new epoch begins without anyone: all who ran, waited or were kept."""
        kept, self.kept = self.kept, []
        self._in_ring, self.due = 0, None
        return [*kept, *self.work.abandon()]

    def keep(self, alive: list[Sequence | Call], why: str = "") -> None:
        """These, and no others, go on here once every stage is ready; ``why`` they do not now, where that is news."""
        self.kept = alive
        if not alive:
            self.due = None
        elif why:
            self._why = why
            self.due = time.monotonic() + (PAUSE if self.ready else self.absence)

    def go_on(self) -> None:
        """Every stage is ready: who was kept goes on."""
        if self.kept:
            kept, self.kept, self.due = self.kept, [], None
            for each in kept:
                self.take(each)

    def give_up(self) -> Told:
        """A stage did not come back: end everything that is kept."""
        return self.lose(f"{self._why}; it was not back within {self.absence:.0f} s")

    def lose(self, why: str) -> Told:
        """End everything that runs, waits or is kept, and begin a new epoch."""
        self._in_ring, self.due = 0, None
        kept, self.kept = self.kept, []
        for each in kept:
            self.take(each)
        if isinstance(self.work, Calls):
            self.work.lose(stage_lost(why))
            return []
        gone = [(self.callers.pop(lost.id, None), lost) for lost in self.work.lose(why)]
        return [(caller, lost) for caller, lost in gone if caller is not None]

    def _returned(self, epoch: int) -> bool:
        """Note an answer; False when it belongs to an epoch that is over."""
        if epoch != self._epoch or self._in_ring == 0:
            return False
        self.missed = 0
        self._in_ring -= 1
        self.due = time.monotonic() + self.patience if self._in_ring else None
        return True


def tell(told: Told) -> None:
    """Call whom it concerns; one caller's bug does not end everyone else's requests."""
    for caller, event in told:
        try:
            caller(event)
        except Exception:  # noqa: BLE001 - whatever a callback raises is its own
            _log.exception("a request's callback failed")


def stage_lost(why: str) -> UnreachableError:
    """What ends a request whose pipeline is gone."""
    return UnreachableError("stage-lost", why, hint="try again when `ruvrun status` says ready")


def patience_of(manifest: Manifest, pipeline: int) -> float:
    """Seconds that a step of this pipeline may take.

    A chunk of a prompt has 256 tokens, none of which costs more than a step of one row does; twice that.
    """
    total, plan = 0.0, manifest.plan
    for placed in manifest.pipeline[pipeline].stages:
        expected = plan.of(placed.node)
        row = expected.step_ms(1) if expected is not None else None
        if row is None and placed.stage < len(plan.stage_ms):
            row = plan.stage_ms[placed.stage]
        total += row or 0.0
    return 10.0 + 0.512 * total


def absence_of(manifest: Manifest, pipeline: int) -> float:
    """Seconds that a stage of this pipeline may take to come back, whose process or machine was started again."""
    heaviest = max(manifest.stage[placed.stage].weight_bytes for placed in manifest.pipeline[pipeline].stages)
    return _RESTART + heaviest / _LOADED
