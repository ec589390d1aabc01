"""Who runs and who waits: sequences come, get space, grow, give it back, and are put back.

**Running** is having space; a sequence has it from before its first step to its end. It is free at once, and whoever
waits for it gets it at once.

**Put back.** Where space is in blocks, a sequence may want one more when none is free. Then the youngest of all that
run waits again, with its tokens, to be computed again later (``sequence``); and the next youngest, until there is one.
The youngest has waited the least and, as a rule, has the least to compute again. The oldest is never put back while
others run, so whatever the load, answers end one after the other. What a put-back frees is less than the same sequence
would need to be let in again (``blocks``), so nobody goes to and fro.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ruvrun.engine.blocks import BlockTable
from ruvrun.engine.kv import SlotTable
from ruvrun.engine.line import Line
from ruvrun.engine.sequence import Sequence


class Roster:
    """All sequences of an engine.

    Attributes:
        running: those that have space, by the ids of their requests, the oldest first.
        line: those that wait for it.
        table: whose which space is.
        grows: whether they get more of it as they go on; who has a slot has space for a whole context.
        put_backs: how often one was put back.
    """

    def __init__(self, table: SlotTable) -> None:
        self.table = table
        self.line = Line()
        self.running: dict[int, Sequence] = {}
        self._blocks = table if isinstance(table, BlockTable) else None
        self.grows = self._blocks is not None
        self.put_backs = 0

    def __contains__(self, name: int) -> bool:
        return name in self.running or name in self.line

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.running.values()
        yield from self.line

    def has_room(self, context: int) -> bool:
        """Whether nobody waits, and there is space for anybody."""
        return not self.line and self.table.can_allocate((), context)

    def join(self, sequence: Sequence, *, late: bool = False) -> None:
        """Let a sequence in, or let it wait: behind all others, or where it would be if it was not so ``late``."""
        assert sequence.request.id not in self, f"id {sequence.request.id} is alive"
        if late:
            self.line.rejoin(sequence)
        else:
            self.line.join(sequence)
        self.admit()

    def end(self, sequence: Sequence) -> None:
        """Take its space from a sequence that runs; ``admit`` gives it away."""
        del self.running[sequence.request.id]
        self.table.free(sequence.slot)

    def admit(self) -> None:
        """Give what space there is to those who wait."""
        while (sequence := self.line.next(self._fits)) is not None:
            name = sequence.request.id
            sequence.slot = self.table.allocate(name, sequence.request.prompt, len(sequence.tokens))
            if self._blocks is not None:
                sequence.room = self._blocks.room(sequence.slot)
            older_than_some = self.running and next(reversed(self.running)) > name
            self.running[name] = sequence
            if older_than_some:
                self.running = dict(sorted(self.running.items()))

    def grow(self, sequences: Iterable[Sequence]) -> list[Sequence]:
        """Let each of these have space for its next position; who was put back for that, perhaps some of these."""
        gone: list[Sequence] = []
        assert self._blocks is not None, "what is in slots does not grow"
        for sequence in sequences:
            while sequence.sent == sequence.room and sequence not in gone:
                if self._blocks.can_grow():
                    sequence.blocks = self._blocks.grow(sequence.slot)
                    sequence.room = self._blocks.room(sequence.slot)
                else:
                    youngest = self.running[next(reversed(self.running))]
                    self.end(youngest)
                    gone.append(youngest)
        for each in gone:
            self.line.rejoin(each.afresh())
        self.put_backs += len(gone)
        if gone:
            self.admit()
        return gone

    def clear(self) -> list[Sequence]:
        """All space is lost: who ran or waited, the oldest first."""
        alive = [each.afresh(1) for each in self.running.values()] + self.line.clear()
        self.running.clear()
        self.table.forget()
        return sorted(alive, key=lambda each: each.request.id)  # some may have passed others

    def _fits(self, sequence: Sequence) -> bool:
        return self.table.can_allocate(sequence.request.prompt, len(sequence.tokens))
