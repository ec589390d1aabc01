"""The key/value table: which slot belongs to which sequence, on every stage alike.

A slot is room for ``context`` positions of one sequence, on each stage at the same index. The head alone
decides; stages follow the step plan and keep no table of their own. So space runs out when every slot is held, and
never in the middle of an answer: who has a slot can use the whole context. Who has none waits.

The lowest free slot goes first, since executors run contiguous windows of slots: the fewer holes, the less work is
wasted. Where beginnings of prompts are used again, what lies in the free ones has a say, too (``contents``).
"""

from __future__ import annotations

import heapq

from ruvrun.engine.contents import Contents


class SlotTable:
    """``slots`` slots, free or held by a sequence id. Ask ``can_allocate`` first, then ``allocate``.

    ``reuse`` is positions of a block in which beginnings of prompts are known again; 0 is never.
    """

    def __init__(self, slots: int, reuse: int = 0) -> None:
        assert slots > 0
        self._slots, self._reuse = slots, reuse
        self.forget()

    @property
    def held_count(self) -> int:
        """Slots that somebody holds."""
        return len(self._held)

    def can_allocate(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def allocate(self, holder: int, prompt: tuple[int, ...] = ()) -> int:
        """Give a free slot to ``holder``, a sequence id; the lowest, or the best for its prompt."""
        if self._contents is None:
            slot = heapq.heappop(self._free)
        else:
            slot = self._contents.choose(self._free, prompt)
            self._free.remove(slot)
            heapq.heapify(self._free)
        self._held[slot] = holder
        return slot

    def begin(self, slot: int, prompt: tuple[int, ...]) -> tuple[int, int]:
        """The holder of ``slot`` begins: from which slot it gets its first positions (-1: none), and how many."""
        return (-1, 0) if self._contents is None else self._contents.begin(slot, prompt)

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

    def holder(self, slot: int) -> int | None:
        """The sequence id that holds ``slot``."""
        return self._held.get(slot)

    def check(self) -> None:
        """Every slot is either free or held, once. For tests."""
        assert len(self._free) == len(set(self._free)), f"a slot is free twice: {sorted(self._free)}"
        assert not set(self._free) & set(self._held), "a slot is free and held"
        assert set(self._free) | set(self._held) == set(range(self._slots)), "a slot is lost"
        assert len(set(self._held.values())) == len(self._held), "a sequence holds two slots"
        if self._contents is not None:
            self._contents.check()
