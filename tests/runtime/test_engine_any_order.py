"""The engine, with real workers on a fake model, under any order of events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ruvrun import frames
from ruvrun.engine import Request, blocks
from ruvrun.manifest.blocks import Pool
from tests import strategies
from tests.runtime.consistency import check
from tests.runtime.engine_ring import CONTEXT, Ring
from tests.runtime.fakes import LAYERS, VOCAB, plain_tokens


@pytest.fixture(autouse=True, scope="module")
def narrow() -> Iterator[None]:
    """With less of a margin, so that space runs out more often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MARGIN", 1)
        yield


@settings(max_examples=60, stateful_step_count=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
class AnyOrder(RuleBasedStateMachine):
    """Requests come, go and are lost at any moment, and every stage and link has its own pace."""

    @initialize(
        stages=st.integers(1, LAYERS),
        streams=st.integers(1, 5),
        chunk=st.integers(2, 6),
        beside=st.lists(st.integers(2, 5), max_size=3),
        groups=st.lists(st.integers(1, 2 * LAYERS - 1), max_size=5),
        ragged=st.booleans(),
        reuse=st.sampled_from([0, 2, 3, 4]),
        more=st.none() | st.integers(0, 30),
    )
    def start(
        self,
        stages: int,
        streams: int,
        chunk: int,
        beside: list[int],
        groups: list[int],
        ragged: bool,
        reuse: int,
        more: int | None,
    ) -> None:
        """``more`` blocks than one sequence may need are shared; or each has a slot."""
        size = reuse or 4
        pool = None if more is None else Pool(-(-CONTEXT // size) + more, size)
        counts = tuple(min(each, many, 2 * stages - 1) for many, each in enumerate(groups, 1))
        self.ring = Ring(
            stages,
            streams,
            chunk=chunk,
            beside=tuple(beside),
            groups=counts,
            ragged=ragged,
            reuse=reuse,
            pool=pool,
        )
        self.requests: list[Request] = []
        self.gone: set[int] = set()

    @rule(data=st.data())
    def add(self, data: st.DataObject) -> None:
        new = data.draw(strategies.requests(len(self.requests), context=CONTEXT, vocab=VOCAB))
        self.requests.append(new)
        self.ring.add(new)

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, len(self.requests) - 1))
        self.ring.cancel(number)
        if number not in self.ring.finished:
            self.gone.add(number)

    @rule(times=st.integers(1, 6))
    def send(self, times: int) -> None:
        for _ in range(times):
            self.ring.send()

    @rule(stage=st.integers(0, LAYERS - 1), times=st.integers(1, 4))
    def work(self, stage: int, times: int) -> None:
        for _ in range(times):
            self.ring.work(stage % len(self.ring.workers))

    @rule()
    def receive(self) -> None:
        self.ring.receive()

    @rule(times=st.integers(1, 20))
    def turn(self, times: int) -> None:
        for _ in range(times):
            self.ring.turn()

    @precondition(lambda self: len(self.requests) > 1)
    @rule(stage=st.integers(0, LAYERS - 1))
    def lose(self, stage: int) -> None:
        alive = [r.id for r in self.requests if r.id not in self.gone and r.id not in self.ring.finished]
        lost = self.ring.lose(stage % len(self.ring.workers))
        assert [one.id for one in lost] == alive
        assert self.ring.engine.idle
        self.gone |= set(alive)

    @precondition(lambda self: self.requests)
    @rule(stage=st.integers(0, LAYERS - 1))
    def lose_and_go_on(self, stage: int) -> None:
        """As another engine would go on with them."""
        for sequence in self.ring.abandon(stage % len(self.ring.workers)):
            self.ring.engine.resume(sequence)

    @invariant()
    def consistent(self) -> None:
        ring = self.ring
        check(ring.engine)
        assert ring.steps_out <= ring.engine.window
        opened = [message.id for message in ring.sent if isinstance(message, frames.Open)]
        assert ring.pooled or opened == sorted(opened), "first come, first served"
        now = sum(message.epoch == ring.engine.epoch for box in ring.inboxes for message, _ in box)  # type: ignore[union-attr] # all have one
        assert now <= ring.engine.most_in_ring

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def ask_on(self, data: st.DataObject) -> None:
        """A prompt that begins like one of before: with its instructions, or with all that was said."""
        earlier = data.draw(st.sampled_from(self.requests))
        said = (*earlier.prompt, *self.ring.answers[earlier.id])
        new = data.draw(strategies.requests(len(self.requests), context=CONTEXT, vocab=VOCAB))
        prompt = (*said[: data.draw(st.integers(0, len(said)))], *new.prompt)[: CONTEXT - 1]
        self.requests.append(msgspec.structs.replace(new, prompt=prompt))
        self.ring.add(self.requests[-1])

    def teardown(self) -> None:
        if not hasattr(self, "ring"):
            return
        self.ring.drain()
        check(self.ring.engine)
        assert self.ring.engine.running == self.ring.engine.waiting == 0
        assert all(not worker._open for worker in self.ring.workers) or not self.ring.sent
        for one in self.requests:
            expected = plain_tokens(one, CONTEXT)
            answer = self.ring.answers[one.id]
            if one.id in self.gone:
                assert answer == expected[: len(answer)]
            else:
                assert answer == expected
                assert self.ring.finished[one.id] == ("stop" if expected[-1] in one.eos else "length")


TestAnyOrder = AnyOrder.TestCase
