"""The decoder of ``fakes``, with its states in blocks that several sequences may share."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from ruvrun.executors import Span
from ruvrun.manifest.blocks import Pool
from ruvrun.pipeline.worker import Worker
from tests.runtime.fakes import CUTS, FakeDecoder, fake_spec, mix

_Page = list[list[tuple[int, int]]]


class PooledFake(FakeDecoder):
    """A ``PooledExecutor`` that trusts nobody.

    A block holds, for each layer and position, the state before and the state there. So before each step it is seen
    whether all that lies in a sequence's blocks was computed one after the other: a block that is another's, was
    written by another, or is in another place breaks the chain.
    """

    def __init__(self, first: int, last: int, *, sequences: int, context: int, pool: Pool) -> None:
        super().__init__(first, last, slots=sequences, context=context)
        self.pool, self.sequences = pool, sequences
        self._tables: list[list[int]] = [[] for _ in range(sequences)]
        self._pages: list[_Page] = [[[] for _ in self.layers] for _ in range(pool.blocks)]

    def grant(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        table = self._tables[slot]
        assert 0 <= first <= len(table), "a block was left out"
        table[first:] = blocks
        assert len(set(table)) == len(table), "a block is in two places"

    def _span(self, span: Span, values: list[int]) -> list[int]:
        table, size = self._tables[span.slot], self.pool.size
        assert span.position + span.count <= min(self.context, len(table) * size)
        for layer, number in enumerate(self.layers):
            chain = 0
            for position in range(span.position):
                before, state = self._pages[table[position // size]][layer][position % size]
                assert before == chain, "what lies there is another's"
                chain = state
            for index, value in enumerate(values):
                block, offset = divmod(span.position + index, size)
                page = self._pages[table[block]][layer]
                if offset == 0:
                    page.clear()
                assert len(page) == offset, "a position was left out or comes twice"
                values[index] = mix(number, chain, value, int(span.count == 1))
                page.append((chain, values[index]))
                chain = values[index]
        return values


def pooled_workers(stages: int, *, sequences: int, context: int, pool: Pool) -> list[Worker]:
    """The fake model in one to four stages, each with such a pool."""
    return [
        Worker(PooledFake(first, last, sequences=sequences, context=context, pool=pool), fake_spec(first, last))
        for first, last in itertools.pairwise(CUTS[stages])
    ]
