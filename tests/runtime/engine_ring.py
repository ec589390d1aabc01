"""Stages joined by queues, for tests that move one message at a time and look at all that an engine sends."""

from __future__ import annotations

from collections import deque

import numpy as np

from ruvrun import frames
from ruvrun.engine import Engine, Lost, Request, Sequence
from ruvrun.errors import IntegrityError
from ruvrun.executors import Array
from ruvrun.manifest.blocks import Pool
from ruvrun.pipeline.worker import Worker
from tests.runtime.consistency import check
from tests.runtime.fakes import fake_workers, greedy
from tests.runtime.pools import pooled_workers

CONTEXT = 24
_Parcel = tuple[frames.Message, dict[str, Array]]


def request(number: int, prompt: tuple[int, ...] = (1, 2, 3), max_tokens: int = 4, **more: object) -> Request:
    return Request(number, prompt, max_tokens, greedy(), more.get("eos", frozenset()))  # type: ignore[arg-type] # tests


class Ring:
    """Stages joined by queues, which a test moves one message at a time; it checks what the engine sends."""

    def __init__(
        self,
        stages: int,
        streams: int,
        *,
        chunk: int = 4,
        context: int = CONTEXT,
        beside: tuple[int, ...] = (),
        groups: tuple[int, ...] = (),
        ragged: bool = False,
        reuse: int = 0,
        pool: Pool | None = None,
    ) -> None:
        self.engine = Engine(
            stages=stages,
            context=context,
            streams=streams,
            chunk=chunk,
            beside=beside,
            groups=groups,
            ragged=ragged,
            reuse=reuse,
            pool=pool,
        )
        self._streams, self._pool = streams, pool
        self._groups = groups or tuple(range(1, stages + 1))
        self._usual, self._ragged = not groups, ragged
        self.workers = self._fresh(stages)
        self.inboxes: list[deque[_Parcel]] = [deque() for _ in range(stages + 1)]
        self.sent: list[frames.Ring] = []
        self.steps_out = 0
        self.due: set[int] = set()
        self.decoding: set[int] = set()
        self.answers: dict[int, list[int]] = {}
        self.prompts: dict[int, tuple[int, ...]] = {}
        self.finished: dict[int, str] = {}
        self.results: deque[frames.Sampled] = deque()

    @property
    def pooled(self) -> bool:
        return self._pool is not None

    def _fresh(self, stages: int) -> list[Worker]:
        if self._pool is None:
            return fake_workers(stages, slots=self._streams, context=self.engine.context)
        return pooled_workers(stages, sequences=self._streams, context=self.engine.context, pool=self._pool)

    def add(self, new: Request) -> None:
        self.engine.add(new)
        self.answers[new.id] = []
        self.prompts[new.id] = new.prompt

    def cancel(self, number: int) -> None:
        self.engine.cancel(number)
        self.decoding.discard(number)

    def send(self) -> bool:
        outgoing = self.engine.step()
        if outgoing is None:
            return False
        message, tensors = outgoing
        assert message.epoch == self.engine.epoch
        assert message.step == len(self.sent), "every ring message of an epoch has the next number"
        if isinstance(message, frames.Step):
            self._check_step(message)
            assert tensors["input_ids"].dtype == np.int64
        elif isinstance(message, frames.Close):  # it ended, or was put back
            self.due.discard(message.id)
            self.decoding.discard(message.id)
        self.sent.append(message)
        check(self.engine)
        self.inboxes[0].append((message, dict(tensors)))
        return True

    def _check_step(self, message: frames.Step) -> None:
        self.steps_out += 1
        assert self.steps_out <= self.engine.window
        assert [seq.slot for seq in message.seqs] == sorted({seq.slot for seq in message.seqs})
        opened: set[int] = set()
        for earlier in self.sent:
            if isinstance(earlier, frames.Open):
                assert earlier.id not in opened
                opened.add(earlier.id)
            elif isinstance(earlier, frames.Close):
                opened.remove(earlier.id)
        before = [earlier for earlier in self.sent if not isinstance(earlier, frames.Open)]
        put_back = bool(before) and isinstance(before[-1], frames.Close)  # who would have gone, perhaps
        for seq in message.seqs:
            assert seq.id in opened
            assert seq.id not in self.due, "a step was sent whose input depends on a token not returned"
        self.due |= {seq.id for seq in message.seqs if seq.rows}
        steps = [earlier for earlier in self.sent if isinstance(earlier, frames.Step)]
        chunks, rows = self._chunks(message), len(message.seqs) - len(self._chunks(message))
        assert len(chunks) <= 1, "two prompts in a step"
        assert self._ragged or not (chunks and rows), "a chunk is a step of its own"
        if chunks and not rows and self.decoding and not put_back:
            idle = self.steps_out <= len(self.workers)  # this one is counted
            assert idle or not self._chunks(steps[-1]), "two chunks in a row although others decode"
        many = len(self.decoding)
        assert put_back or not rows or rows <= -(-many // self._groups[min(many, len(self._groups)) - 1])
        for seq in chunks:
            if seq.position + seq.count == len(self.prompts[seq.id]) and not seq.rows:
                self.decoding.add(seq.id)  # its tokens are known from before

    def _chunks(self, step: frames.Step) -> list[frames.SeqStep]:
        """Those parts of a step that are of prompts; all others have one token."""
        chunks = [seq for seq in step.seqs if seq.position < len(self.prompts[seq.id])]
        assert all(seq.count == 1 for seq in step.seqs if seq not in chunks)
        return chunks

    def work(self, stage: int) -> bool:
        if not self.inboxes[stage]:
            return False
        message, tensors = self.inboxes[stage].popleft()
        try:
            result = self.workers[stage].handle(message, tensors)
        except IntegrityError:
            assert isinstance(message, frames.Ring)
            assert message.epoch < self.engine.epoch, "a worker found fault with a message of this epoch"
            return True
        if result is not None:
            self.inboxes[stage + 1].append(result)
        return True

    def receive(self) -> bool:
        if not self.inboxes[-1]:
            return False
        message, _ = self.inboxes[-1].popleft()
        assert isinstance(message, frames.Sampled)
        if message.epoch == self.engine.epoch:
            self.steps_out -= 1
            self.due -= {number for number, _ in message.tokens}
        came = self.engine.receive(message)
        check(self.engine)
        for token in came:
            assert token.id not in self.finished
            self.answers[token.id].append(token.token)
            self.decoding.add(token.id)
            if token.finish:
                self.finished[token.id] = token.finish
                self.decoding.discard(token.id)
        return True

    def lose(self, stage: int) -> list[Lost]:
        """The process of ``stage`` is replaced by a new one; other stages still hold messages of before."""
        lost = self.engine.lose("it is gone")
        self._replace(stage)
        return lost

    def abandon(self, stage: int) -> list[Sequence]:
        """As ``lose``, but nobody ends."""
        alive = self.engine.abandon()
        self._replace(stage)
        return alive

    def _replace(self, stage: int) -> None:
        self.workers[stage] = self._fresh(len(self.workers))[stage]
        self.inboxes[stage].clear()
        self.sent, self.steps_out = [], 0
        self.due.clear()
        self.decoding.clear()

    def turn(self) -> bool:
        """Send all there is, move the oldest message one lap, and take its result."""
        moved = False
        while self.send():
            moved = True
        self.check_busy()
        for stage in range(len(self.workers)):
            moved |= self.work(stage)
        return self.receive() or moved

    def check_busy(self) -> None:
        """All that may go has gone: no stage is idle for want of a step while somebody could go, but where a plan says
        that fewer groups are better, or a step of who is gone is still on its way.
        """
        running = self.engine._roster.running
        could = [each.name for each in running.values() if each.prompt_left or (each.decoding and not each.due)]
        under_way = [each for flight in self.engine._flights for each in (*flight.due, *flight.known)]
        if self._usual and all(running.get(each.name) is each for each in under_way):
            assert not could or self.steps_out >= len(self.workers), f"{could} wait, and a stage is idle"

    def drain(self) -> None:
        for _ in range(5000):
            if not self.turn() and self.engine.idle:
                return
        raise AssertionError("the ring does not come to rest")
