"""Space in blocks: one pool that all sequences share, and a list of blocks for each.

A sequence that begins gets blocks for the tokens it has, so its prompt is never held up half-way; then one more
whenever its next position is behind the last. What it does not use is others'.

**Admission.** The pool may run dry while sequences grow, and then somebody is put back (``roster``) and computed again
later. So one is let in only while ``MARGIN`` blocks are left for each of those that run besides, another 128 tokens.
With nobody else there is no such margin, and whoever fits the context fits the pool. By the engine itself, with steps
that take what OpenVINO's were measured to take, and space for 4 sequences of 1,024 tokens (``tests/runtime/pressure``):

    tokens a second, tokens computed again    slots   margin 0   1           2            4            8
    prompts of 20-600, answers of 20-400        183   162, 57 %  207, 14 %   218, 4.7 %   222, 0 %     211, 0 %
    prompts of 20-100, answers of 20-900        261   267, 70 %  308, 35 %   326, 22 %    347, 8.2 %   345, 1.2 %
    prompts of 400-900, answers of 10-100        53    49, 12 %   54, 1.0 %   54, 0 %      54, 0 %      53, 0 %
    prompts of 20-200, answers of 10-200        200   295, 0 %   295, 0 %    295, 0 %     284, 0 %     265, 0 %

**Prompts that begin alike** share the full blocks of what they have in common: nothing is copied, and it is there once.
A block whose tokens, and all before them, were prompt can be found by them; it stays when its sequence ends, until the
pool needs it, the least recently used first and ends of prompts before their beginnings. As in ``contents``: only
prompts are known (law 1: blocks of what was generated are of the other mode), and at least two tokens of a prompt are
left to compute. Since only full blocks are shared, nobody ever writes to a block that is another's, too.

**Found by what they are.** A block is filed under the number of the block before it and its own tokens; numbers are
given once and never again. So it is found by comparing tokens, and no made-up hash finds what is another's; and when a
block goes, those filed behind it are not found any more.

A block may be used again at once, for the reason for which a slot may (``kv``).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass

from ruvrun.engine.kv import Beginning, SlotTable
from ruvrun.manifest.blocks import Pool

MARGIN = 4
"""Blocks that are left for each that runs when another one is let in."""

_File = tuple[int, tuple[int, ...]]


@dataclass(slots=True)
class _List:
    """The blocks of one sequence; how many of them are filed, as they are its prompt's, and the number of the last."""

    prompt: tuple[int, ...]
    blocks: list[int]
    filed: int = 0
    number: int = 0


class BlockTable(SlotTable):
    """A pool of blocks, each free or in the lists of some of ``slots`` sequences.

    ``reuse`` is whether beginnings of prompts are known again.
    """

    def __init__(self, slots: int, pool: Pool, *, reuse: bool) -> None:
        self._pool, self._reuses = pool, reuse
        super().__init__(slots)

    def can_allocate(self, prompt: tuple[int, ...], tokens: int) -> bool:
        """See ``SlotTable.can_allocate``."""
        if not self._free:
            return False
        free = len(self._empty) + len(self._kept) - MARGIN * len(self._held)
        most = self._count(tokens)
        return most <= free or most - sum(self._users[block] > 0 for block in self._find(prompt)) <= free

    def allocate(self, holder: int, prompt: tuple[int, ...], tokens: int) -> int:
        """See ``SlotTable.allocate``."""
        found = self._find(prompt)
        for block in found:
            self._use(block)
        fresh = [self._take() for _ in range(self._count(tokens) - len(found))]
        slot = super().allocate(holder, prompt, tokens)
        self._lists[slot] = _List(prompt, found + fresh)
        return slot

    def begin(self, slot: int, prompt: tuple[int, ...]) -> Beginning:
        """See ``SlotTable.begin``. What others have filled since it was let in is shared, too."""
        own = self._lists[slot]
        found = self._find(prompt)
        for place, block in enumerate(found):
            if own.blocks[place] != block:
                self._use(block)
                self._drop(own.blocks[place])
                own.blocks[place] = block
        if found:
            own.filed, own.number = len(found), self._numbers[found[-1]]
        return Beginning(-1, len(found) * self._pool.size, tuple(own.blocks))

    def extend(self, slot: int, end: int) -> None:
        """See ``SlotTable.extend``."""
        if not self._reuses:
            return
        own, size = self._lists[slot], self._pool.size
        for place in range(own.filed, min(end, len(own.prompt)) // size):
            file = own.number, own.prompt[place * size : (place + 1) * size]
            block = self._known.setdefault(file, own.blocks[place])
            if block == own.blocks[place]:
                self._filed += 1
                self._files[block], self._numbers[block] = file, self._filed
            own.filed, own.number = place + 1, self._numbers[block]

    def room(self, slot: int) -> int:
        """How many positions the holder of ``slot`` has space for."""
        return len(self._lists[slot].blocks) * self._pool.size

    def can_grow(self) -> bool:
        """Whether a block is free."""
        return bool(self._empty or self._kept)

    def grow(self, slot: int) -> tuple[int, ...]:
        """Give the holder of ``slot`` one more block."""
        block = self._take()
        self._lists[slot].blocks.append(block)
        return (block,)

    def known(self, prompt: tuple[int, ...]) -> int:
        """How many positions of a prompt need not be computed."""
        return len(self._find(prompt)) * self._pool.size

    def free(self, slot: int) -> None:
        """Take all of a sequence's space back, at once."""
        super().free(slot)
        for block in reversed(self._lists.pop(slot).blocks):  # what is freed first goes first
            self._drop(block)

    def forget(self) -> None:
        """What lay in the blocks is lost, and nobody has any."""
        super().forget()
        self._lists: dict[int, _List] = {}
        self._users = [0] * self._pool.blocks
        self._empty = list(reversed(range(self._pool.blocks)))
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._known: dict[_File, int] = {}
        self._files: dict[int, _File] = {}
        self._numbers: dict[int, int] = {}
        self._filed = 0

    def check(self, holders: Mapping[int, int]) -> None:
        """Every block is free or in lists, never both; only filed ones are in several. For tests."""
        super().check(holders)
        assert self._lists.keys() == self._held.keys(), "a list is nobody's"
        users = Counter(block for each in self._lists.values() for block in each.blocks)
        assert self._users == [users[block] for block in range(self._pool.blocks)]
        for each in self._lists.values():
            assert len(set(each.blocks)) == len(each.blocks), "a sequence has a block twice"
            assert each.blocks, "a sequence without space runs"
        for block, count in users.items():
            assert count == 1 or block in self._files, "a block is two sequences', and may be written"
        free = [*self._empty, *self._kept]
        assert len(set(free)) == len(free), "a block is free twice"
        assert set(free).isdisjoint(users), "a block is free and used"
        assert len(free) + len(users) == self._pool.blocks, "a block is lost"
        assert self._files.keys() == self._numbers.keys()
        assert {file: block for block, file in self._files.items()} == self._known
        assert set(self._kept) <= self._files.keys()
        assert self._files.keys().isdisjoint(self._empty)

    def _count(self, tokens: int) -> int:
        return -(-tokens // self._pool.size)

    def _find(self, prompt: tuple[int, ...]) -> list[int]:
        """The blocks that hold the beginning of a prompt, in order."""
        found: list[int] = []
        number, size = 0, self._pool.size
        if self._known:
            for start in range(0, len(prompt) - 1 - size, size):
                block = self._known.get((number, prompt[start : start + size]))
                if block is None:
                    break
                found.append(block)
                number = self._numbers[block]
        return found

    def _use(self, block: int) -> None:
        """One more list has a block that is known."""
        self._users[block] += 1
        self._kept.pop(block, None)

    def _take(self) -> int:
        """A free block, for whatever will be written to it."""
        if self._empty:
            block = self._empty.pop()
        else:
            block, _ = self._kept.popitem(last=False)
            del self._known[self._files.pop(block)], self._numbers[block]
        self._users[block] = 1
        return block

    def _drop(self, block: int) -> None:
        """One list less has a block; when none has, it is free, and stays known if it was."""
        self._users[block] -= 1
        if not self._users[block]:
            if block in self._files:
                self._kept[block] = None
            else:
                self._empty.append(block)
