"""What of prompts lies in the slots, so that a prompt that begins like another is computed from where they part.

Chats bring their whole history with every turn, and many begin with the same instructions. What is known here of a
slot are the positions of a prompt that were sent to it, in full blocks; they stay when the sequence ends, until another
takes the slot. A newcomer whose prompt begins with the same blocks finds them by hash and gets a copy from slot to
slot, on every stage alike, with the message that opens it. As frames keep their order, the source may be a slot whose
sequence is still being computed: the copy is made behind it. A copy moves memory and is some hundred times faster than
computing (a position of SmolLM2-135M is 46 KB).

**Law 1.** Only positions of prompts are known here, which were computed in chunk mode, and only for the beginnings of
prompts are they used. What was generated was computed in the other mode, and is computed again when it comes back as
part of a prompt. A rest of one token would be computed alone, so at least two are always left; and a prompt of one
token, which is, fills no block.

**Hashes** of a block are chained over all tokens before it, so one look-up tells about the whole beginning. They only
point at a slot: what is used has been compared token by token, so nobody can be given another's with made-up hashes.

**Which slot.** Executors run a contiguous window of slots, so of the free ones those come first that make no hole
beside the slots that are held. Of these, the one that holds nothing but the beginning of this very prompt (the next
turn of a chat: nothing is copied, and nothing is lost); else that which was of use the longest ago.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator


class Contents:
    """What lies in ``slots`` slots, in blocks of ``block`` positions."""

    def __init__(self, slots: int, block: int) -> None:
        assert block >= 2, "a prompt of one token would be a block, and of the other mode"
        self.block = block
        self._prompts: list[tuple[int, ...]] = [()] * slots
        self._chains: list[list[int]] = [[] for _ in range(slots)]
        self._where: dict[int, set[int]] = {}
        self._used = [0] * slots
        self._now = 0

    def choose(self, free: Collection[int], prompt: tuple[int, ...]) -> int:
        """The best of the ``free`` slots for a prompt."""
        source, count = self.find(prompt)
        last = len(self._prompts) - 1

        def rank(slot: int) -> tuple[int, bool, bool, int, int]:
            alone = (slot == 0 or slot - 1 in free) + (slot == last or slot + 1 in free)
            lost = len(self._chains[slot]) * self.block - (count if slot == source else 0)
            # Where nothing would be lost the source goes first, else last: it is of use at this very moment.
            return alone, lost > 0, (slot == source) == (lost > 0), self._used[slot], slot

        return min(free, key=rank)

    def find(self, prompt: tuple[int, ...], own: int = -1) -> tuple[int, int]:
        """A slot that holds the beginning of a prompt, ``own`` if it does, and how many positions of it; (-1, 0) where
        none does.
        """
        found: set[int] = set()
        count = 0
        for end, chain in self._hashes(prompt, 0, 0, len(prompt) - 2):
            slots = self._where.get(chain)
            if not slots:
                break
            found, count = slots, end
        for slot in sorted(found, key=lambda each: each != own):
            if self._prompts[slot][:count] == prompt[:count]:
                return slot, count
        return -1, 0

    def begin(self, slot: int, prompt: tuple[int, ...]) -> tuple[int, int]:
        """A sequence with this prompt takes ``slot``: from which slot it gets its first positions, and how many."""
        source, count = self.find(prompt, slot)
        self._now += 1
        if count:
            self._used[source] = self._now
        for chain in self._chains[slot]:
            self._where[chain].discard(slot)
            if not self._where[chain]:
                del self._where[chain]
        self._chains[slot] = []
        self._prompts[slot] = prompt
        self.extend(slot, count)
        return source, count

    def extend(self, slot: int, end: int) -> None:
        """All positions below ``end`` of the slot's prompt were sent."""
        chains = self._chains[slot]
        for _, chain in self._hashes(self._prompts[slot], len(chains), chains[-1] if chains else 0, end):
            chains.append(chain)
            self._where.setdefault(chain, set()).add(slot)
        self._now += 1
        self._used[slot] = self._now

    def check(self) -> None:
        """Every block that lies somewhere is found there, and no other. For tests."""
        assert {(chain, slot) for chain, slots in self._where.items() for slot in slots} == {
            (chain, slot) for slot, chains in enumerate(self._chains) for chain in chains
        }
        assert all(self._where.values())

    def _hashes(self, prompt: tuple[int, ...], blocks: int, chain: int, end: int) -> Iterator[tuple[int, int]]:
        """Ends and hashes of the full blocks of a prompt up to ``end``, after the first ``blocks``."""
        size = self.block
        for start in range(blocks * size, min(end, len(prompt)) - size + 1, size):
            chain = hash((chain, prompt[start : start + size]))
            yield start + size, chain
