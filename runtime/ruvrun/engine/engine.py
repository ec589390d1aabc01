"""The engine: sequences in, ring messages out; sampled tokens in, tokens out. No I/O, no clock, no threads.

The life of a request here:

1. ``add`` checks it and puts it at the end of the line.
2. As soon as there is space for it, the first in the line gets that, or one of the next who needs less (see ``line``,
   ``kv`` and ``blocks``); where space runs out later, the youngest is put back into the line (see ``roster``).
3. ``step`` sends an Open before its first Step, with what need not be computed of its prompt (see ``contents``), then
   the rest in chunks (see ``scheduler``). The chunk with the prompt's last token asks for a row.
4. ``receive`` takes the token the last stage sampled. Until then nothing that depends on it is sent.
5. ``step`` sends that token as the sequence's next position, together with others of its group.
6. 4 and 5 repeat until an eos token, ``max_tokens`` or the end of the context. ``cancel`` ends it earlier.
7. Its space is free at once, and a Close is sent.

**The window.** At most W = 2 x stages Steps are in the ring: one being worked on per stage, and one behind it.
Open and Close return nothing and take none of the window. They cannot pile up, either: an Open is sent
directly before a Step, and each Close needs an Open, so at any time at most 3 W + streams messages of all
kinds are on the way (``most_in_ring``), which is what links must be able to hold.

**Numbers.** ``step`` counts all ring messages of an epoch from 0. ``abandon`` and ``lose`` start the next epoch;
results of older ones are dropped. Stages that outlive a head keep the epoch they have seen, so a new head must start
above it: give ``epoch`` something that rises from one start to the next.
"""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

from ruvrun import frames
from ruvrun.engine.blocks import BlockTable
from ruvrun.engine.flight import Flight, check_result
from ruvrun.engine.kv import SlotTable
from ruvrun.engine.roster import Roster
from ruvrun.engine.sampling import told
from ruvrun.engine.scheduler import CHUNK, Part, Scheduler
from ruvrun.engine.sequence import Lost, Request, Sequence, Token, check_request
from ruvrun.manifest.blocks import Pool

Outgoing = tuple[frames.Ring, dict[str, npt.NDArray[np.int64]]]


class Engine:
    """All sequences of one pipeline.

    Args:
        stages: stages of the pipeline.
        context: positions that a sequence may have.
        streams: slots: sequences at a time.
        chunk, beside: tokens of a prompt per step, as for ``Scheduler``.
        groups: how many groups 1, 2, ... sequences form that decode, as for ``Scheduler``.
        ragged: whether a chunk goes in the step of those who decode, as for ``Scheduler``.
        epoch: the first epoch, above any that the stages have seen.
        reuse: positions of a block in which beginnings of prompts are known again; 0 is never. All stages can copy.
        pool: what sequences share on every stage, where all have their space in blocks; without, each has a whole slot.
    """

    def __init__(
        self,
        *,
        stages: int,
        context: int,
        streams: int,
        chunk: int = CHUNK,
        beside: tuple[int, ...] = (),
        groups: tuple[int, ...] = (),
        ragged: bool = False,
        epoch: int = 1,
        reuse: int = 0,
        pool: Pool | None = None,
    ) -> None:
        self.context = context
        self.window = 2 * stages
        self.most_in_ring = 3 * self.window + streams
        self.epoch = epoch
        self._scheduler = Scheduler(stages=stages, chunk=chunk, beside=beside, groups=groups, ragged=ragged)
        assert pool is None or (pool.blocks * pool.size >= context and reuse in (0, pool.size))
        self._roster = Roster(BlockTable(streams, pool, reuse=reuse > 0) if pool else SlotTable(streams, reuse))
        self._flights: deque[Flight] = deque()
        self._outbox: deque[Outgoing] = deque()
        self._numbered = 0
        self._events = 0

    @property
    def running(self) -> int:
        """Sequences that have space."""
        return len(self._roster.running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for space."""
        return len(self._roster.line)

    @property
    def first_waiting(self) -> int | None:
        """The request that waits for space the longest."""
        return self._roster.line.first

    @property
    def has_room(self) -> bool:
        """Whether nobody waits, and there is space for anybody."""
        return self._roster.has_room(self.context)

    @property
    def put_backs(self) -> int:
        """How often a sequence was put back, as space ran out, since the engine began."""
        return self._roster.put_backs

    @property
    def unread(self) -> int:
        """Prompt tokens that were not sent yet, of those who wait, too."""
        return sum(each.prompt_left for each in self._roster)

    def known(self, prompt: tuple[int, ...]) -> int:
        """How many positions of a prompt need not be computed."""
        return self._roster.table.known(prompt)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to send and nothing to wait for."""
        return not (self.running or self.waiting or self._flights or self._outbox)

    def add(self, request: Request) -> None:
        """Take a request: first come, first served, but for the few who may pass it (``line``).

        Raises:
            InputError: the prompt is empty or leaves no room for a token, or no token is asked for.
        """
        check_request(request, self.context)
        self._roster.join(Sequence(request))

    def resume(self, sequence: Sequence) -> None:
        """Take a sequence that another engine gave away; it waits before all that came later, as ids are counted."""
        self._roster.join(sequence, late=True)

    def cancel(self, id: int) -> None:
        """End a request now and free its space; one that has ended already is no error."""
        if self._roster.line.leave(id) is None and id in self._roster.running:
            self._end(self._roster.running[id])
        self._roster.admit()

    def withdraw(self) -> Sequence:
        """Give away the sequence that waits the longest: no stage holds any of it, so any engine can ``resume`` it."""
        sequence = next(iter(self._roster.line))
        self._roster.line.leave(sequence.request.id)
        self._roster.admit()
        return sequence

    def step(self) -> Outgoing | None:
        """The next ring message to send, with its tensors; None when there is none until something returns."""
        if self._outbox:
            return self._outbox.popleft()
        running = self._roster.running.values()
        for sequence in running:
            if not sequence.due:
                break
        else:  # every sequence awaits a token: the usual case between steps
            return None
        in_ring = len(self._flights)
        if in_ring < self.window:
            decode_steps = 0
            for flight in self._flights:
                decode_steps += flight.decode
            parts = self._scheduler.next(running, decode_steps, in_ring)
            if parts and self._roster.grows:
                parts = self._with_space(parts)
            if parts:
                return self._send(parts)
            if self._outbox:  # all who should have gone were put back
                return self._outbox.popleft()
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
        running, context, now = self._roster.running, self.context, self._events
        for sequence, (name, (token,)) in zip(flight.due, message.tokens, strict=True):
            if running.get(name) is not sequence:
                continue  # cancelled or put back while the step was on its way
            sequence.since = now
            accepted = sequence.accept(token, context, scores.get(name) if scores else None)
            returned.append(accepted)
            if accepted.finish is not None:
                self._end(sequence)
        if self._roster.line:
            self._roster.admit()
        return returned

    def abandon(self) -> list[Sequence]:
        """A stage was lost, and what it held with it: a new epoch begins without anyone.

        Returns:
            Who ran or waited, the oldest first, with the tokens they have: any engine can ``resume`` them.
        """
        alive = self._roster.clear()
        self._flights.clear()
        self._outbox.clear()
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
        decode, read = False, None
        spans: list[frames.SeqStep] = []
        ids: list[int] = []
        due: list[Sequence] = []
        known: list[Sequence] = []
        for part in parts:
            sequence = part.sequence
            decodes = sequence.decoding
            if decodes:
                decode = True
            else:
                read = sequence
            if not sequence.opened:
                part = self._open(sequence)
            count, rows, sent = part.count, part.rows, sequence.sent
            given, sequence.blocks = sequence.blocks, ()
            spans.append(frames.SeqStep(sequence.name, sequence.slot, sent, count, rows, given))
            ids += sequence.tokens[sent : sent + count]
            sequence.sent = sent = sent + count
            if rows:
                due.append(sequence)
                sequence.due = True
            elif decodes:
                known.append(sequence)
                sequence.due = True
                sequence.behind = sent + 1 < len(sequence.tokens)
            elif sequence.prompt_left == 0:  # and the next token is known
                sequence.decoding, sequence.since = True, self._events
                sequence.behind = sent + 1 < len(sequence.tokens)
        if read is not None:
            self._roster.table.extend(read.slot, read.sent)
            if self._roster.line:  # some of whom need less now that this is there
                self._roster.admit()
        number = self._numbered
        self._numbered = number + 1
        self._flights.append(Flight(number, tuple(due), decode, tuple(known)))
        step = frames.Step(self.epoch, number, tuple(spans)), {"input_ids": np.fromiter(ids, np.int64, len(ids))}
        if not self._outbox:
            return step
        self._outbox.append(step)
        return self._outbox.popleft()

    def _open(self, sequence: Sequence) -> Part:
        """Announce a sequence with what is known of it: generated tokens, where it goes on; and its first chunk."""
        request, slot = sequence.request, sequence.slot
        source, count, blocks = self._roster.table.begin(slot, request.prompt)
        sequence.opened, sequence.sent = True, count
        history = told(request.sampling, request.prompt, sequence.tokens[len(request.prompt) :])
        begun = (slot, source, count, blocks) if count or blocks else ()
        self._post(frames.Open(self.epoch, self._numbered, request.id, request.sampling, *history, *begun))
        return self._scheduler.chunk(sequence)

    def _post(self, message: frames.Ring) -> None:
        self._numbered += 1
        self._outbox.append((message, {}))

    def _with_space(self, parts: list[Part]) -> list[Part]:
        """Those parts of a step that decodes whose sequences have space for it, and are not put back for others."""
        gone = self._roster.grow([part.sequence for part in parts])
        for sequence in gone:
            self._close(sequence)
        return [part for part in parts if part.sequence not in gone] if gone else parts

    def _end(self, sequence: Sequence) -> None:
        """Free what a running sequence holds, here at once and on the stages by a Close."""
        self._roster.end(sequence)
        self._close(sequence)

    def _close(self, sequence: Sequence) -> None:
        if sequence.opened:
            self._post(frames.Close(self.epoch, self._numbered, sequence.request.id))
