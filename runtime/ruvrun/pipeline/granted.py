"""Which blocks of a stage's space its sequences were given, as far as a stage can tell what the head may say of them.

Only the head's table knows whose a block is. A stage knows which blocks messages gave to a sequence, and which were
filled to their ends since they were last given as fresh ones; so a sequence that is longer than its blocks,
or begins with blocks that nobody has filled, is an error here and not a wrong token.
"""

from __future__ import annotations

from collections.abc import Sequence

from ruvrun.errors import IntegrityError
from ruvrun.executors import DecoderExecutor, GraphExecutor, PooledExecutor
from ruvrun.frames import Open


class Granted:
    """The blocks of all sequences of one stage.

    Attributes:
        pool: what they share; None where space is in slots.
        sequences: how many may share it.
    """

    def __init__(self, executor: DecoderExecutor | GraphExecutor) -> None:
        self._pooled = executor if isinstance(executor, PooledExecutor) else None
        self.pool = self._pooled.pool if self._pooled else None
        self.sequences = self._pooled.sequences if self._pooled else 0
        self._full: set[int] = set()

    def clear(self) -> None:
        """A new epoch: nothing that was filled counts."""
        self._full.clear()

    def begin(self, message: Open) -> list[int]:
        """The blocks that a sequence begins with; the first may be others' too, and full.

        Raises:
            IntegrityError: they are not full, or there are no such blocks.
        """
        pooled = self._demand()
        shared, rest = divmod(message.count, pooled.pool.size)
        if rest or shared >= len(message.blocks) or not self._full.issuperset(message.blocks[:shared]):
            raise fault(f"sequence {message.id} shall begin with blocks that nobody has filled")
        blocks: list[int] = []
        self.add(blocks, message.slot, message.blocks, shared)
        return blocks

    def add(self, blocks: list[int], slot: int, more: Sequence[int], shared: int = 0) -> None:
        """Give the sequence in ``slot``, which has ``blocks``, more of them; all but the first ``shared`` are fresh.

        Raises:
            IntegrityError: there are no such blocks.
        """
        pooled = self._demand()
        if not (0 <= slot < pooled.sequences and max(more) < pooled.pool.blocks):
            raise fault(f"slot {slot} is given blocks {list(more)}, and there are {pooled.pool.blocks}")
        pooled.grant(slot, len(blocks), more)
        blocks += more
        self._full.difference_update(more[shared:])

    def room(self, blocks: list[int]) -> int:
        """Positions that so many blocks hold."""
        return len(blocks) * self._demand().pool.size

    def fill(self, blocks: list[int], start: int, end: int) -> None:
        """Positions from ``start`` to ``end`` (not included) of the sequence with these blocks were computed."""
        size = self._demand().pool.size
        if end // size > start // size:
            self._full.update(blocks[start // size : end // size])

    def _demand(self) -> PooledExecutor:
        if self._pooled is None:
            raise fault("a sequence is given blocks by the head, and space here is in slots")
        return self._pooled


def fault(what: str) -> IntegrityError:
    """A message that cannot be right."""
    return IntegrityError("ring-fault", what, hint="all nodes must run the same build and version")
