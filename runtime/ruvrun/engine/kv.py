"""The key/value table: which slot belongs to which sequence, on every stage alike.

A slot is room for ``context`` positions of one sequence, on each stage at the same index. The head alone
decides; stages follow the step plan and keep no table of their own. The lowest free slot goes first, since
executors run contiguous windows of slots: the fewer holes, the less work is wasted.
"""

from __future__ import annotations

import heapq


class SlotTable:
    """``slots`` slots, free or held by a sequence id. Ask ``can_allocate`` first, then ``allocate``."""

    def __init__(self, slots: int) -> None:
        assert slots > 0
        self._free = list(range(slots))
        self._held: dict[int, int] = {}
        self._slots = slots

    @property
    def held_count(self) -> int:
        """Slots that somebody holds."""
        return len(self._held)

    def can_allocate(self) -> bool:
        """Whether a slot is free."""
        return bool(self._free)

    def allocate(self, holder: int) -> int:
        """Give the lowest free slot to ``holder``, a sequence id."""
        slot = heapq.heappop(self._free)
        self._held[slot] = holder
        return slot

    def free(self, slot: int) -> None:
        """Take ``slot`` back; the next ``allocate`` may give it away again."""
        del self._held[slot]
        heapq.heappush(self._free, slot)

    def holder(self, slot: int) -> int | None:
        """The sequence id that holds ``slot``."""
        return self._held.get(slot)

    def check(self) -> None:
        """Every slot is either free or held, once. For tests."""
        assert len(self._free) == len(set(self._free)), f"a slot is free twice: {sorted(self._free)}"
        assert not set(self._free) & set(self._held), "a slot is free and held"
        assert set(self._free) | set(self._held) == set(range(self._slots)), "a slot is lost"
        assert len(set(self._held.values())) == len(self._held), "a sequence holds two slots"
