"""The engine: sequences in, ring messages out; sampled tokens in, tokens out. No I/O, no clock, no threads.

The life of a request here:

1. ``add`` checks it and puts it at the end of the queue.
2. As soon as a slot is free, the oldest in the queue gets the lowest one.
3. ``step`` sends an Open before its first Step, with what need not be computed of its prompt (see ``contents``), then
   the rest in chunks (see ``scheduler``). The chunk with the prompt's last token asks for a row.
4. ``receive`` takes the token the last stage sampled. Until then nothing that depends on it is sent.
5. ``step`` sends that token as the sequence's next position, together with others of its group.
6. 4 and 5 repeat until an eos token, ``max_tokens`` or the end of the context. ``cancel`` ends it earlier.
7. The slot is free at once, and a Close is sent.

**Why a slot may be reused at once**, even while a Step of its former holder is still in the ring: every stage
handles the messages of an epoch in the order they were sent, without exception. So what the old step writes
is written, on each stage, before the first step of the new holder arrives there; that one starts at position
0 and overwrites, and never reads a position it did not write. Only the old step's result is of no use any
more: when it returns, the engine finds that the sequence in question is gone (the very object, so that the
id may come back, too) and drops the token.

**The window.** At most W = 2 x stages Steps are in the ring: one being worked on per stage, and one behind it.
Open and Close return nothing and take none of the window. They cannot pile up, either: an Open is sent
directly before a Step, and each Close needs an Open, so at any time at most 3 W + streams messages of all
kinds are on the way (``most_in_ring``), which is what links must be able to hold.

**Going on elsewhere.** What a stage holds of a sequence can always be computed again, since the tokens are here. So a
sequence that lost what it had goes on elsewhere (``abandon`` here, ``resume`` there, before all who came later). Each
position is then computed in the mode in which it was (law 1): the prompt in chunks, and the tokens that were generated
one at a time, without asking for a token until the last of them is sent. Nothing in these depends on the step before,
but they wait for it all the same, and so keep the pace of the others.

**Numbers.** ``step`` counts all ring messages of an epoch from 0. ``abandon`` and ``lose`` start the next epoch;
results of older ones are dropped. Stages that outlive a head keep the epoch they have seen, so a new head must start
above it: give ``epoch`` something that rises from one start to the next.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from ruvrun import frames
from ruvrun.engine.flight import Flight, check_result
from ruvrun.engine.kv import SlotTable
from ruvrun.engine.sampling import told
from ruvrun.engine.scheduler import CHUNK, Part, Scheduler
from ruvrun.engine.sequence import Lost, Request, Sequence, Token, check_request

Outgoing = tuple[frames.Ring, dict[str, npt.NDArray[np.int64]]]


class Engine:
    """All sequences of one pipeline.

    Args:
        stages: stages of the pipeline.
        context: positions per slot.
        streams: slots.
        chunk, beside: tokens of a prompt per step, as for ``Scheduler``.
        epoch: the first epoch, above any that the stages have seen.
        reuse: positions of a block in which beginnings of prompts are known again; 0 is never. All stages can copy.
    """

    def __init__(
        self,
        *,
        stages: int,
        context: int,
        streams: int,
        chunk: int = CHUNK,
        beside: tuple[int, ...] = (),
        epoch: int = 1,
        reuse: int = 0,
    ) -> None:
        self.context = context
        self.window = 2 * stages
        self.most_in_ring = 3 * self.window + streams
        self.epoch = epoch
        self._stages = stages
        self._scheduler = Scheduler(stages=stages, chunk=chunk, beside=beside)
        self._slots = SlotTable(streams, reuse)
        self._waiting: dict[int, Sequence] = {}
        self._running: dict[int, Sequence] = {}
        self._flights: deque[Flight] = deque()
        self._outbox: deque[Outgoing] = deque()
        self._numbered = 0
        self._events = 0

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a slot."""
        return len(self._waiting)

    @property
    def first_waiting(self) -> int | None:
        """The request that waits for a slot the longest."""
        return next(iter(self._waiting), None)

    @property
    def has_room(self) -> bool:
        """Whether a slot is free; then nobody waits."""
        return self._slots.can_allocate()

    @property
    def unread(self) -> int:
        """Prompt tokens that were not sent yet, of those who wait for a slot, too."""
        return sum(each.prompt_left for held in (self._running, self._waiting) for each in held.values())

    def known(self, prompt: tuple[int, ...]) -> int:
        """How many positions of a prompt need not be computed."""
        return self._slots.known(prompt)

    @property
    def in_flight(self) -> int:
        """Steps in the ring."""
        return len(self._flights)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return not (self._waiting or self._running or self._flights or self._outbox)

    def add(self, request: Request) -> None:
        """Take a request; first come, first served.

        Raises:
            InputError: the prompt is empty or leaves no room for a token, or no token is asked for.
        """
        assert request.id not in self._waiting and request.id not in self._running, f"id {request.id} is alive"
        check_request(request, self.context)
        self._waiting[request.id] = Sequence(request)
        self._admit()

    def resume(self, sequence: Sequence) -> None:
        """Take a sequence that another engine gave away; it waits before all that came later, as ids are counted."""
        name = sequence.request.id
        assert name not in self._waiting and name not in self._running, f"id {name} is alive"
        self._waiting = dict(sorted([*self._waiting.items(), (name, sequence)]))
        self._admit()

    def cancel(self, id: int) -> None:
        """End a request now and free its slot; one that has ended already is no error."""
        if self._waiting.pop(id, None) is None and id in self._running:
            self._end(self._running[id])
            self._admit()

    def withdraw(self) -> Sequence:
        """Give away the sequence that waits the longest: no stage holds any of it, so any engine can ``resume`` it."""
        return self._waiting.pop(next(iter(self._waiting)))

    def step(self) -> Outgoing | None:
        """The next ring message to send, with its tensors; None when there is none until something returns."""
        if self._outbox:
            return self._outbox.popleft()
        for sequence in self._running.values():
            if not sequence.due:
                break
        else:  # every sequence awaits a token: the usual case between steps
            return None
        if len(self._flights) < self.window:
            decode_steps = 0
            for flight in self._flights:
                decode_steps += flight.decode
            if parts := self._scheduler.next(self._running.values(), decode_steps):
                return self._send(parts)
        return None

    def receive(self, message: frames.Sampled) -> list[Token]:
        """Take the result of the oldest Step in the ring.

        Raises:
            IntegrityError: it is the result of another step, or names other sequences than the step did.
        """
        if message.epoch < self.epoch:
            return []
        flight = self._flights[0] if self._flights else None
        scores = check_result(message, self.epoch, flight)
        assert flight is not None
        self._flights.popleft()
        self._events += 1
        for sequence in flight.known:
            sequence.due, sequence.since = False, self._events
        returned = []
        for sequence, (name, (token,)) in zip(flight.due, message.tokens, strict=True):
            if self._running.get(name) is not sequence:
                continue  # cancelled while the step was on its way
            sequence.since = self._events
            returned.append(sequence.accept(token, self.context, scores.get(name)))
            if returned[-1].finish:
                self._end(sequence)
        if self._waiting:
            self._admit()
        return returned

    def abandon(self) -> list[Sequence]:
        """A stage was lost, and what it held with it: a new epoch begins without anyone.

        Returns:
            Who ran or waited, the oldest first, with the tokens they have: any engine can ``resume`` them.
        """
        alive = [each.afresh() for each in self._running.values()] + list(self._waiting.values())
        self._slots.forget()
        for emptied in (self._running, self._waiting, self._flights, self._outbox):
            emptied.clear()
        self.epoch += 1
        self._numbered = 0
        return alive

    def lose(self, why: str) -> list[Lost]:
        """As ``abandon``, and every request ends."""
        return [Lost(each.request.id, why) for each in self.abandon()]

    def _send(self, parts: list[Part]) -> Outgoing:
        """What goes now: a Step, or the Open of a sequence that is new with that Step behind it in the outbox.

        The tokens are marked as sent.
        """
        decode = parts[0].sequence.decoding
        if not (decode or parts[0].sequence.opened):
            parts = [self._open(parts[0].sequence)]
        spans: list[frames.SeqStep] = []
        ids: list[int] = []
        due: list[Sequence] = []
        known: list[Sequence] = []
        for part in parts:
            sequence, sent = part.sequence, part.sequence.sent
            spans.append(frames.SeqStep(sequence.request.id, sequence.slot, sent, part.count, part.rows))
            ids += sequence.tokens[sent : sent + part.count]
            sequence.sent = sent = sent + part.count
            if part.rows:
                due.append(sequence)
                sequence.due = True
            elif decode:
                known.append(sequence)
                sequence.due = True
                sequence.behind = sent + 1 < len(sequence.tokens)
            elif sequence.prompt_left == 0:  # and the next token is known
                sequence.decoding, sequence.since = True, self._events
                sequence.behind = sent + 1 < len(sequence.tokens)
        if not decode:
            self._slots.extend(parts[0].sequence.slot, parts[0].sequence.sent)
        number = self._numbered
        self._numbered = number + 1
        self._flights.append(Flight(number, tuple(due), decode, tuple(known)))
        step = frames.Step(self.epoch, number, tuple(spans)), {"input_ids": np.array(ids, np.int64)}
        if not self._outbox:
            return step
        self._outbox.append(step)
        return self._outbox.popleft()

    def _open(self, sequence: Sequence) -> Part:
        """Announce a sequence with what is known of it: generated tokens, where it goes on; and its first chunk."""
        request, slot = sequence.request, sequence.slot
        source, count = self._slots.begin(slot, request.prompt)
        sequence.opened, sequence.sent = True, count
        history = told(request.sampling, request.prompt, sequence.tokens[len(request.prompt) :])
        copied = (slot, source, count) if count else ()
        self._post(frames.Open(self.epoch, self._numbered, request.id, request.sampling, *history, *copied))
        return self._scheduler.chunk(sequence)

    def _post(self, message: frames.Ring) -> None:
        self._numbered += 1
        self._outbox.append((message, {}))

    def _end(self, sequence: Sequence) -> None:
        """Free what a running sequence holds, here at once and on the stages by a Close."""
        del self._running[sequence.request.id]
        self._slots.free(sequence.slot)
        if sequence.opened:
            self._post(frames.Close(self.epoch, self._numbered, sequence.request.id))

    def _admit(self) -> None:
        """Give free slots to those who wait, the oldest first."""
        while self._waiting and self._slots.can_allocate():
            name = next(iter(self._waiting))
            sequence = self._waiting.pop(name)
            sequence.slot = self._slots.allocate(name, sequence.request.prompt)
            older_than_some = self._running and next(reversed(self._running)) > name
            self._running[name] = sequence
            if older_than_some:
                self._running = dict(sorted(self._running.items()))
