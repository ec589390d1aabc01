"""Those who wait for space, in the order in which they came.

First come, first served, with a bound on how long anyone is passed over: the first in line begins as soon as there is
space for it. Who was put back, or lost a stage, stands in front of all that came later, as requests are counted.

Where space is in slots, nobody passes anybody. Where it is in blocks, the first may need much while little is free, and
others behind it need less. Then they pass, since what is free would be of no use to anybody; but while one waits no
more than ``PASSES`` of those who came later begin before it, and none but the first ``LOOK`` look for a gap. So who
needs a whole pool gets it when these, and who ran before, are done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from ruvrun.engine.sequence import Sequence

PASSES = 8
LOOK = 8


class Line:
    """All sequences that wait, by the ids of their requests."""

    def __init__(self) -> None:
        self._waiting: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._waiting.values())

    def __contains__(self, name: int) -> bool:
        return name in self._waiting

    @property
    def first(self) -> int | None:
        """Who has waited the longest."""
        return next(iter(self._waiting), None)

    def join(self, sequence: Sequence) -> None:
        """Wait behind all others."""
        self._waiting[sequence.request.id] = sequence

    def rejoin(self, sequence: Sequence) -> None:
        """Wait where it would be if it had always waited."""
        self._waiting = dict(sorted([*self._waiting.items(), (sequence.request.id, sequence)]))

    def leave(self, name: int) -> Sequence | None:
        """Wait no more; None where it did not."""
        return self._waiting.pop(name, None)

    def next(self, fits: Callable[[Sequence], bool]) -> Sequence | None:
        """Who leaves the line to begin; None while nobody who may go ``fits``."""
        passed: list[Sequence] = []
        for sequence in islice(self._waiting.values(), LOOK):
            if fits(sequence):
                for each in passed:
                    each.passed += 1
                return self._waiting.pop(sequence.request.id)
            if sequence.passed >= PASSES:
                return None
            passed.append(sequence)
        return None

    def clear(self) -> list[Sequence]:
        """Nobody waits any more: who did, the first in front."""
        gone = list(self._waiting.values())
        self._waiting.clear()
        return gone
