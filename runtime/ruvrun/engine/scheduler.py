"""Which sequences form the next step.

The ring is a pipe of S stages that all work at once, each on another step. A step costs a stage a fixed part
(all weights are read once) and a part per token. So the tokens per second of many sequences depend on two
things: that every stage always has a step to work on, and that each step carries as many tokens as that
allows. (SmolLM2-135M, a core per stage: 1, 8 and 16 rows to a step are 101, 270 and 310 tokens a second on ONNX
Runtime, 90, 388 and 491 on OpenVINO. Two stages of the former give one sequence 100, two of them 192, and 16 of
them, in two groups of 8, 449.) Time to the next token, for one client, depends on what stands before its step in the
pipe.

**Groups.** With D sequences decoding, a step carries up to G = ceil(D / S) of them, and no more decode steps
are in the ring than there are groups, ceil(D / G), at most S. Fewer would leave a stage idle. More would be
smaller ones, and stay so: a step that returns is sent on at once, and would never meet the others. With the
limit, what returns finds others waiting and joins them, so that whatever the order of arrival, after some
rounds every group is whole. (Equal sizes would gain nothing where D is no multiple of G: a round takes S times
as long as the largest group's step.)

Groups are runs of neighbours when the decoding sequences are sorted by slot, and a step lists its slots in
ascending order, because executors run one contiguous window of slots and lose time at each hole. Groups are
computed anew for every step: a sequence that joins or leaves moves the borders, and those on their way
meanwhile join their new group when they come back. Of the groups that are whole, that one goes of which a
member has been ready the longest. Only when none is whole does a part of one go, rather than leave a stage
idle. So who waits, waits for the rest of the own group, which is on its way, and then at most for one step of
each other group.

**Prompts.** A prompt is sent in chunks, each a step of its own, the oldest request first; the next chunk need
not wait for the one before, as frames keep their order and nothing depends on a token not yet known. While
others decode, at least one decode step goes between two chunks, and chunks are of a size that those who decode hardly
notice: so many tokens as take little more than one of their steps on the slowest stage (``pipeline/chunks.py``). When
nobody decodes, chunks are large, and may fill the ring.

**Law 1** rests here on two rules. A position of a prompt is computed in chunk mode (two or more tokens of a
sequence in one call), so a rest of one token joins the chunk before it, which then has one more than
``chunk``; a prompt of one token has no chunk to join and is single everywhere. A generated position is
computed alone in its row (single mode), in any company. The two modes differ in the last bits; within a mode
neither chunk size nor company does.
"""

from __future__ import annotations

import operator
from collections.abc import Collection

import msgspec

from ruvrun.engine.sequence import Sequence


class Part(msgspec.Struct, frozen=True, gc=False):
    """A sequence's part of a step: its next ``count`` tokens; ``rows`` is 1 when a token shall be sampled."""

    sequence: Sequence
    count: int
    rows: int


CHUNK = 256
_SLOT = operator.attrgetter("slot")


class Scheduler:
    """Chooses the next step; the only thing it remembers is whether the last one was a chunk of a prompt.

    Args:
        stages: number of stages of the ring.
        chunk: tokens of a prompt per step, at least two.
        beside: the same while groups of 1, 2, ... sequences decode; of larger ones it is the last, of none ``chunk``.
    """

    def __init__(self, *, stages: int, chunk: int, beside: tuple[int, ...] = ()) -> None:
        assert stages >= 1
        assert min((chunk, *beside)) >= 2, "a chunk of one token would be computed in the other mode"
        self._stages = stages
        self._chunk = chunk
        self._beside = beside
        self._size = chunk
        self._after_chunk = False

    def next(self, running: Collection[Sequence], decode_steps: int) -> list[Part]:
        """The parts of the next step, in ascending order of slots; empty when nothing should be sent now.

        Args:
            running: the sequences that hold a slot, the oldest request first.
            decode_steps: decode steps now in the ring.
        """
        decoding: list[Sequence] = []
        for sequence in running:
            if sequence.decoding:
                decoding.append(sequence)
        if parts := self._group(decoding, decode_steps):
            self._after_chunk = False
            return parts
        if decoding and self._after_chunk:
            return []
        for sequence in running:
            if sequence.prompt_left:
                self._after_chunk = True
                self._size = self._chunk
                if decoding and self._beside:
                    group = -(-len(decoding) // self._stages)
                    self._size = self._beside[min(group, len(self._beside)) - 1]
                return [self.chunk(sequence)]
        return []

    def chunk(self, sequence: Sequence) -> Part:
        """The next chunk of a prompt; a token is asked for behind the last, unless it is known already."""
        left = sequence.prompt_left
        count = chunk_of(left, self._size)
        return Part(sequence, count, int(count == left and not sequence.resumed))

    def _group(self, decoding: list[Sequence], decode_steps: int) -> list[Part]:
        """One token of each ready member of the group whose turn it is.

        Nothing while as many steps as groups are in the ring.
        """
        if not decoding:
            return []
        size = -(-len(decoding) // self._stages)
        if decode_steps >= -(-len(decoding) // size):
            return []
        by_slot = sorted(decoding, key=_SLOT) if len(decoding) > 1 else decoding
        chosen: list[Part] = []
        best: tuple[bool, int] | None = None
        # Whole groups before parts, then the one that has waited longest: plain loops, since every step comes here.
        for start in range(0, len(by_slot), size):
            members = by_slot[start : start + size]
            ready: list[Part] = []
            since = 0
            for sequence in members:
                if not sequence.due:
                    if not ready or sequence.since < since:
                        since = sequence.since
                    ready.append(Part(sequence, 1, 0 if sequence.behind else 1))
            rank = (len(ready) < len(members), since)
            if ready and (best is None or rank < best):
                chosen, best = ready, rank
        return chosen


def chunk_of(left: int, chunk: int) -> int:
    """How many of the ``left`` prompt tokens go next: ``chunk``, but all when at most one would remain."""
    return left if left <= chunk + 1 else chunk


__all__ = ["CHUNK", "Part", "Scheduler", "chunk_of"]
