"""One pipeline as the head's driver sees it: its work, who waits for what of it, and what is under way in its ring.

A manifest may hold several pipelines. Each is a ring of its own, with its own engine (or calls), its own numbers and
epochs, and its own deadline, and what goes wrong in one is no affair of the others. What they share (the thread, the
links' one socket, the numbers of requests) is the driver's, which also holds the lock under which everything here is
called.

Every step of every sequence passes here, with its caches cold, so its way is short: ``next``, ``sampled`` and what they
call are plain loops.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from ruvrun.elements import Value
from ruvrun.engine import Engine, Lost, Token
from ruvrun.errors import IntegrityError, UnreachableError
from ruvrun.frames import Failed, Ring, Run, Sampled, Step
from ruvrun.manifest import Manifest
from ruvrun.pipeline.calls import Calls

Event = Token | Lost
OnEvent = Callable[[Event], None]
Tensors = Mapping[str, Value]
Told = list[tuple[OnEvent, Event]]


class Lane:
    """One pipeline of a manifest, in the head.

    Args:
        number: which one of the manifest.
        work: the engine of a decoder, or the calls of a graph.
        patience: seconds that a step may take, however busy the machines are.
    """

    __slots__ = ("_epoch", "_in_ring", "callers", "due", "number", "patience", "ready", "work")

    def __init__(self, number: int, work: Engine | Calls, patience: float) -> None:
        self.number = number
        self.work = work
        self.patience = patience
        self.ready = False
        self.callers: dict[int, OnEvent] = {}
        # When an answer must be there; None while nothing is in the ring.
        self.due: float | None = None
        self._epoch = work.epoch
        self._in_ring = 0

    def next(self) -> list[tuple[Ring, Tensors]]:
        """Everything that can be sent now."""
        outgoing: list[tuple[Ring, Tensors]] = []
        if not self.ready:
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

    def overdue(self, now: float) -> str:
        """Why nothing here goes on, if an answer should have come by now; else empty."""
        if self.due is not None and now >= self.due:
            return f"no stage answered for {self.patience:.0f} s"
        return ""

    def cancel(self, id: int) -> bool:
        """Forget a request; False when it is none of ours."""
        if self.callers.pop(id, None) is None:
            return False
        if isinstance(self.work, Engine):
            self.work.cancel(id)
        return True

    def lose(self, why: str) -> Told:
        """End everything that runs or waits, and begin a new epoch."""
        self._in_ring, self.due = 0, None
        if isinstance(self.work, Calls):
            self.work.lose(stage_lost(why))
            return []
        gone = [(self.callers.pop(lost.id, None), lost) for lost in self.work.lose(why)]
        return [(caller, lost) for caller, lost in gone if caller is not None]

    def _returned(self, epoch: int) -> bool:
        """Note an answer; False when it belongs to an epoch that is over."""
        if epoch != self._epoch or self._in_ring == 0:
            return False
        self._in_ring -= 1
        self.due = time.monotonic() + self.patience if self._in_ring else None
        return True


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
