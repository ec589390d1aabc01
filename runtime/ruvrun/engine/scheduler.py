"""Which sequences form the next step.

The ring is a pipe of S stages that all work at once, each on another step. A step costs a stage a fixed part
(all weights are read once) and a part per token. So the tokens per second of many sequences depend on two
things: that every stage always has a step to work on, and that each step carries as many tokens as that
allows. (SmolLM2-135M, a core per stage: the back ends alone did 101, 270 and 310 tokens a second with 1, 8 and 16 rows
to a step on ONNX Runtime, 90, 388 and 491 on OpenVINO. Through this engine, by the benchmarks ``users16`` of
2026-11-30, it was 109 and 93 for one sequence in one stage, and 464 and 700 for 16 in two stages, in two groups of 8.)
Time to the next token, for one client, depends on what stands before its step in the pipe.

**Groups.** The D sequences that decode form n groups, as equal as can be, and no more decode steps than n are in the
ring. As a rule n is the number of stages S (with fewer sequences than that, each is one): fewer would leave a stage
idle, and more would be smaller ones, and stay so, as a step that returns is sent on at once and would never meet the
others. Where the plan knows what steps of more and of fewer rows take on the slowest stage, that may say otherwise
(``groups``). With the limit, what returns finds others waiting and joins them, so that whatever the order of arrival,
after some rounds every group is whole. Those with a member more are the first ones.

Groups are runs of neighbours when the decoding sequences are sorted by slot, and a step lists its slots in
ascending order, because executors run one contiguous window of slots and lose time at each hole. Groups are
computed anew for every step: a sequence that joins or leaves moves the borders, and those on their way
meanwhile join their new group when they come back. Of the groups that are whole, that one goes of which a
member has been ready the longest. Only when none is whole does a part of one go, rather than leave a stage
idle. So who waits, waits for the rest of the own group, which is on its way, and then at most for one step of
each other group.

**Prompts.** A prompt is sent in chunks, the oldest request first; the next chunk need not wait for the one
before, as frames keep their order and nothing depends on a token not yet known. When nobody decodes, chunks are large,
each a step of its own, and may fill the window. While others decode, they are of a size that those who decode hardly
notice (``pipeline/chunks.py``), and go in one of two ways.

Where every stage makes one call of a step, whatever its sequences want (``ragged``), a chunk goes in the step of those
who decode. What a step costs beside its tokens is paid once then, and all steps have one shape: on OpenVINO one of
another shape than the step before costs another 2.3 ms. (Half of SmolLM2-135M on a core, by its executor: a step of
four rows took 5.2 ms; with chunks of 8 tokens between, 7.3 and 9.6 for the chunk; both in one step, 10.3.) Elsewhere,
where an executor would make two calls of it, a chunk is a step of its own, and at least one decode step goes between
two.

Either way, while fewer steps than stages are in the ring and nobody who decodes could go, a chunk goes by itself, to a
stage that would have nothing to do. So no stage is idle for want of a step while somebody could go.

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
_slot_of = operator.attrgetter("sequence.slot")


class Scheduler:
    """Chooses the next step; the only thing it remembers is whether the last one had a chunk of a prompt.

    Args:
        stages: number of stages of the ring.
        chunk: tokens of a prompt per step, at least two.
        beside: the same while groups of 1, 2, ... sequences decode; of larger ones it is the last, of none ``chunk``.
        groups: how many groups 1, 2, ... sequences form (``groups``); more of them form as many as the last says, and
            where it is empty, as many as there are stages.
        ragged: whether a chunk goes in the step of those who decode, and is no step of its own.
    """

    def __init__(
        self,
        *,
        stages: int,
        chunk: int,
        beside: tuple[int, ...] = (),
        groups: tuple[int, ...] = (),
        ragged: bool = False,
    ) -> None:
        assert stages >= 1
        assert min((chunk, *beside)) >= 2, "a chunk of one token would be computed in the other mode"
        self._stages = stages
        self._groups = groups or tuple(range(1, stages + 1))
        self._known = len(self._groups)
        # One place of the window is for chunks.
        assert all(1 <= each <= min(many, 2 * stages - 1) for many, each in enumerate(self._groups, 1))
        self._chunk = chunk
        self._beside = beside
        self._ragged = ragged
        self._size = chunk
        self._after_chunk = False

    def next(self, running: Collection[Sequence], decode_steps: int, in_ring: int) -> list[Part]:
        """The parts of the next step, in ascending order of slots; empty when nothing should be sent now.

        Args:
            running: the sequences that hold a slot, the oldest request first.
            decode_steps, in_ring: decode steps and all steps now in the ring.
        """
        decoding: list[Sequence] = []
        reading: Sequence | None = None
        for sequence in running:
            if sequence.decoding:
                decoding.append(sequence)
            elif reading is None and sequence.prompt_left:
                reading = sequence
        parts = self._group(decoding, decode_steps)
        if parts and (reading is None or not self._ragged):
            self._after_chunk = False
            return parts
        behind_chunk = self._after_chunk or self._ragged
        if reading is None or (not parts and decoding and behind_chunk and in_ring >= self._stages):
            return parts
        self._after_chunk = True
        self._size = self._chunk
        if decoding and self._beside:
            largest = -(-len(decoding) // self._groups[min(len(decoding), self._known) - 1])
            self._size = self._beside[min(largest, len(self._beside)) - 1]
        parts.append(self.chunk(reading))
        if len(parts) > 1:
            parts.sort(key=_slot_of)
        return parts

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
        groups = self._groups[min(len(decoding), self._known) - 1]
        if decode_steps >= groups:
            return []
        by_slot = sorted(decoding, key=_SLOT) if len(decoding) > 1 else decoding
        chosen: list[Part] = []
        best: tuple[bool, int] | None = None
        # Whole groups before parts, then the one that has waited longest: plain loops, since every step comes here.
        rows, larger = divmod(len(by_slot), groups)
        end = 0
        for number in range(groups):
            start, end = end, end + rows + (number < larger)
            members = by_slot[start:end]
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
