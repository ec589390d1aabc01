"""The key/value table: which part of every stage's space is whose, on every stage alike.

The head alone decides; stages follow the step plan. There are two sorts of space, and the table is that of the poorer
of a pipeline's stages.

**Slots** (``SlotTable``, here). The kernels of ONNX Runtime take keys and values as rows of one buffer, ``[slots,
heads, context, head_size]``, so a slot is room for a whole context on each stage, at the same index, however short its
sequence is. (Memory is taken when a page of it is first written, but a slot is not smaller for that: on pages of 2 MiB,
which make steps a tenth faster, a page is two heads of SmolLM2-135M at 4,096 positions, and the first position of a
sequence has touched them all.) So space runs out when every slot is held, and never in the middle of an answer: who
has a slot can use the whole context. Who has none waits.

**Blocks** (``BlockTable``, in ``blocks``), where every stage takes a list of them for each sequence.

The lowest free slot goes first, since executors run contiguous windows of slots: the fewer holes, the less work is
wasted. Where beginnings of prompts are used again, what lies in the free ones has a say, too (``contents``).

**Why a slot may be used again at once**, though a step of its former holder is still in the ring: every stage handles
the messages of an epoch in the order in which they were sent, without exception. So what the old step writes is
written, on each stage, before the first step of the new holder arrives there; that one starts at position 0 and
overwrites, and never reads a position that it did not write. Only the old step's result is of no use any more: when it
returns, the engine finds that the sequence in question is gone (the very object, so that the id may come back, too) and
drops the token.

Ask ``can_allocate`` before ``allocate``; of blocks, ``can_grow`` before ``grow``.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import NamedTuple

from ruvrun.engine.contents import Contents


class Beginning(NamedTuple):
    """What a sequence begins with: its first ``there`` positions are there, in slot ``source`` or in ``blocks``."""

    source: int = -1
    there: int = 0
    blocks: tuple[int, ...] = ()


class SlotTable:
    """``slots`` slots, free or held by a sequence id.

    ``reuse`` is positions of a block in which beginnings of prompts are known again; 0 is never.
    """

    def __init__(self, slots: int, reuse: int = 0) -> None:
        assert slots > 0
        self._slots, self._reuse = slots, reuse
        self.forget()

    def can_allocate(self, prompt: tuple[int, ...], tokens: int) -> bool:
        """Whether there is space for a sequence with this prompt that has so many tokens by now."""
        del prompt, tokens  # whoever it is gets a whole slot
        return bool(self._free)

    def allocate(self, holder: int, prompt: tuple[int, ...], tokens: int) -> int:
        """Give ``holder``, a sequence id, space; the slot it is in."""
        del tokens
        if self._contents is None:
            slot = heapq.heappop(self._free)
        else:
            slot = self._contents.choose(self._free, prompt)
            self._free.remove(slot)
            heapq.heapify(self._free)
        self._held[slot] = holder
        return slot

    def begin(self, slot: int, prompt: tuple[int, ...]) -> Beginning:
        """The holder of ``slot`` begins."""
        return Beginning() if self._contents is None else Beginning(*self._contents.begin(slot, prompt))

    def extend(self, slot: int, end: int) -> None:
        """All positions below ``end`` of the prompt in ``slot`` were sent."""
        if self._contents is not None:
            self._contents.extend(slot, end)

    def known(self, prompt: tuple[int, ...]) -> int:
        """How many positions of a prompt need not be computed."""
        return 0 if self._contents is None else self._contents.find(prompt)[1]

    def free(self, slot: int) -> None:
        """Take ``slot`` back; the next ``allocate`` may give it away again. What lies there stays until then."""
        del self._held[slot]
        heapq.heappush(self._free, slot)

    def forget(self) -> None:
        """What lay in the slots is lost, and nobody holds one."""
        self._free = list(range(self._slots))
        self._held: dict[int, int] = {}
        self._contents = Contents(self._slots, self._reuse) if self._reuse else None

    def check(self, holders: Mapping[int, int]) -> None:
        """Every slot is either free or held, once, and by whom its holder is thought to be. For tests."""
        assert len(self._free) == len(set(self._free)), f"a slot is free twice: {sorted(self._free)}"
        assert not set(self._free) & set(self._held), "a slot is free and held"
        assert set(self._free) | set(self._held) == set(range(self._slots)), "a slot is lost"
        assert self._held == holders, "a slot is another's, or nobody's"
        assert len(set(self._held.values())) == len(self._held), "a sequence holds two slots"
        if self._contents is not None:
            self._contents.check()
