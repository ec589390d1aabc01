"""First come, first served: how often one that waits is passed over, seen from outside and whatever comes when."""

from __future__ import annotations

from collections import Counter, deque

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine, blocks
from ruvrun.engine.line import PASSES
from ruvrun.manifest.blocks import Pool
from tests.runtime.consistency import check
from tests.runtime.engine_ring import request

CONTEXT, SIZE = 64, 4
ONE = CONTEXT // SIZE
"""Blocks of one sequence that uses the whole context."""


class Watched:
    """An engine whose ring answers at once, and who of those that wait was passed by how many that came later."""

    def __init__(self, streams: int, pool: Pool | None) -> None:
        self.engine = Engine(stages=2, context=CONTEXT, streams=streams, chunk=16, pool=pool)
        self.passed: Counter[int] = Counter()
        self.most = 0
        self.began: set[int] = set()
        self._waiting: set[int] = set()
        self._running: set[int] = set()
        self._ring: deque[frames.Sampled] = deque()

    def add(self, number: int, prompt: int, answer: int) -> None:
        self._waiting.add(number)  # it comes, and may be let in at once
        self.engine.add(request(number, (1,) * prompt, max_tokens=answer))
        self.look()

    def cancel(self, number: int) -> None:
        self.engine.cancel(number)
        self.look()

    def turn(self) -> bool:
        """Send all that may go and take one result; False once nothing moves."""
        while sent := self.engine.step():
            if isinstance(sent[0], frames.Step):
                due = tuple((seq.id, (7,)) for seq in sent[0].seqs if seq.rows)
                self._ring.append(frames.Sampled(sent[0].epoch, sent[0].step, due))
            self.look()
        if not self._ring:
            return False
        self.engine.receive(self._ring.popleft())
        self.look()
        return True

    def look(self) -> None:
        """Who has begun since the last look, and whom of those that waited all the while they have passed."""
        check(self.engine)
        running = set(self.engine._roster.running)
        waiting = {each.request.id for each in self.engine._roster.line}
        fresh = running - self._running
        for number in waiting & self._waiting:
            self.passed[number] += sum(number < other for other in fresh)
            self.most = max(self.most, self.passed[number])
        for number in waiting - self._waiting:
            self.passed[number] = 0  # it begins to wait, or waits again
        self.began |= fresh
        self._running, self._waiting = running, waiting


@pytest.mark.parametrize("margin", [0, 1, blocks.MARGIN])
@given(st.data())
@settings(deadline=None, max_examples=60)
def test_nobody_is_passed_more_often_than_the_bound_says(margin: int, data: st.DataObject) -> None:
    """Whatever comes, is cancelled, and is put back; and all come to their turn and to their end."""
    pool = data.draw(st.none() | st.integers(ONE, 2 * ONE).map(lambda count: Pool(count, SIZE)))
    gone = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MARGIN", margin)
        watched = Watched(data.draw(st.integers(1, 3 if pool is None else 20)), pool)
        many = data.draw(st.integers(2, 40))
        for number in range(many):
            long = data.draw(st.integers(0, 3)) == 0
            prompt = data.draw(st.integers(30, CONTEXT - 1) if long else st.integers(1, 6))
            watched.add(number, prompt, data.draw(st.integers(1, 40)))
            for _ in range(data.draw(st.integers(0, 3))):
                watched.turn()
            if data.draw(st.integers(0, 9)) == 0:
                gone.add(other := data.draw(st.integers(0, number)))
                watched.cancel(other)
        while watched.turn():
            pass
    assert watched.engine.idle
    assert watched.began | gone == set(range(many))
    assert watched.most <= (0 if pool is None else PASSES)
    event(f"passed {watched.most} times, {'put back' if watched.engine.put_backs else 'none put back'}")


def test_the_bound_is_reached_and_then_all_wait_behind_it() -> None:
    """One wants a whole context beside another that has one, while small ones come without end."""
    watched = Watched(30, Pool(2 * ONE, SIZE))
    watched.add(0, 49, 15)
    watched.add(1, CONTEXT - 1, 1)
    for number in range(2, 500):
        if 1 in watched.began:
            break
        watched.add(number, 1, 2)
        watched.turn()
    assert 1 in watched.began, "it is passed over for ever"
    assert watched.passed[1] == watched.most == PASSES
