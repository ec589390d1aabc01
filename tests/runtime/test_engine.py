"""The engine, with real workers on a fake model, under any order of events."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ruvrun import frames
from ruvrun.engine import Engine, Lost, Request, Token, blocks
from ruvrun.engine.kv import SlotTable
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import Span
from ruvrun.manifest.blocks import Pool
from tests import strategies
from tests.runtime.consistency import check
from tests.runtime.engine_ring import CONTEXT, Ring, request
from tests.runtime.fakes import LAYERS, VOCAB, FakeDecoder, fake_spec, greedy, plain_tokens


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
        reuse=st.sampled_from([0, 2, 3, 4]),
        more=st.none() | st.integers(0, 30),
    )
    def start(self, stages: int, streams: int, chunk: int, beside: list[int], reuse: int, more: int | None) -> None:
        """``more`` blocks than one sequence may need are shared; or each has a slot."""
        size = reuse or 4
        pool = None if more is None else Pool(-(-CONTEXT // size) + more, size)
        self.ring = Ring(stages, streams, chunk=chunk, beside=tuple(beside), reuse=reuse, pool=pool)
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


@pytest.mark.parametrize(
    ("stages", "groups"),
    [
        (1, [(0, 1, 2, 3, 4)]),
        (2, [(0,)]),
        (2, [(0,), (1,)]),
        (2, [(0, 1), (2,)]),
        (2, [(0, 1), (2, 3)]),
        (3, [(0, 1, 2), (3, 4, 5), (6,)]),
        (4, [(0,), (1,), (2,), (3,)]),
        (4, [(0, 1), (2, 3), (4,)]),
        (4, [(0, 1), (2, 3), (4, 5), (6, 7)]),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_decoding_sequences_settle_into_groups_of_neighbours(
    stages: int, groups: list[tuple[int, ...]], late: bool
) -> None:
    many = sum(len(group) for group in groups)
    ring = Ring(stages, many, context=400)
    for number in range(many):
        ring.add(request(number, max_tokens=300))
        for _ in range(7 if late else 0):
            ring.turn()
    for _ in range(200):
        ring.turn()
    executor = ring.workers[0]._executor
    assert isinstance(executor, FakeDecoder)
    rounds = executor.windows[-4 * len(groups) :]
    assert all(sorted(rounds[at : at + len(groups)]) == groups for at in range(3 * len(groups))), rounds


@given(st.integers(1, 4), st.integers(1, 9), st.lists(st.integers(0, 8), max_size=30))
@settings(deadline=None, max_examples=40)
def test_no_decoding_sequence_falls_behind(stages: int, many: int, pauses: list[int]) -> None:
    ring = Ring(stages, many, context=400)
    for number in range(many):
        ring.add(request(number, (number,), max_tokens=300))
    while len(ring.decoding) < many:
        ring.turn()
    start = {number: len(answer) for number, answer in ring.answers.items()}
    for pause in [*pauses, *range(20)]:
        for stage in range(len(ring.workers)):
            for _ in range(pause):
                ring.work(stage)
        ring.turn()
        gained = [len(ring.answers[number]) - start[number] for number in range(many)]
        assert max(gained) - min(gained) <= 2 + stages


@pytest.mark.parametrize("stages", [1, 2, 3])
def test_who_computes_known_tokens_again_keeps_the_pace_of_the_others(stages: int) -> None:
    """None of them waits for a token, and yet they must not take the turns of those who do."""
    ring = Ring(stages, 4, context=200)
    for number in (0, 1):
        ring.add(request(number, (number, 5), max_tokens=150))
    while len(ring.answers[0]) < 60:
        ring.turn()
    alive = ring.abandon(0)
    for number in (2, 3):
        ring.add(request(number, (number, 7), max_tokens=150))
    for sequence in alive:
        ring.engine.resume(sequence)
    known = len(ring.answers[0])
    while len(ring.answers[0]) == known:
        ring.turn()
    assert min(len(ring.answers[2]), len(ring.answers[3])) >= known - 3 * stages
    for number in range(4):
        ring.cancel(number)
    ring.drain()


def test_a_long_prompt_slows_decoding_down_but_does_not_stop_it() -> None:
    ring = Ring(2, 2, context=200)
    ring.add(request(0, max_tokens=100))
    while not ring.decoding:
        ring.turn()
    ring.add(request(1, tuple(range(60)) * 2))
    before = len(ring.answers[0])
    while not ring.answers[1]:
        ring.turn()
    chunks = sum(isinstance(m, frames.Step) and m.seqs[0].id == 1 for m in ring.sent)
    assert chunks == 30
    assert len(ring.answers[0]) - before >= chunks - ring.engine.window


@pytest.mark.parametrize("stages", [1, 2, 4])
@pytest.mark.parametrize("laps", range(8))
def test_a_slot_is_reused_while_its_last_step_is_in_the_ring(stages: int, laps: int) -> None:
    ring = Ring(stages, 1)
    ring.add(request(0, max_tokens=20))
    ring.add(second := request(1, (9, 8, 7, 6, 5, 4), max_tokens=5))
    for _ in range(laps):
        ring.turn()
    ring.send()
    ring.cancel(0)
    assert (ring.engine.running, ring.engine.waiting) == (1, 0), "the slot is free at once"
    ring.drain()
    assert ring.answers[1] == plain_tokens(second, CONTEXT)


def test_an_id_may_come_back_while_the_step_of_its_first_life_is_in_the_ring() -> None:
    ring = Ring(2, 2)
    ring.add(request(0, (1, 2), max_tokens=9))
    while ring.send():
        pass
    ring.cancel(0)
    ring.due.clear()
    ring.add(again := request(0, (5, 6, 7), max_tokens=3))
    ring.sent = [m for m in ring.sent if not isinstance(m, frames.Close)]
    for _ in range(40):
        closing = ring.engine.step()
        if closing is None:
            for stage in range(2):
                ring.work(stage)
            ring.receive()
        else:
            ring.inboxes[0].append(closing)
            ring.steps_out += isinstance(closing[0], frames.Step)
    assert ring.answers[0] == plain_tokens(again, CONTEXT)


def test_a_sequence_that_was_never_opened_is_not_closed() -> None:
    engine = Engine(stages=1, context=8, streams=1)
    engine.add(request(0))
    engine.add(request(1))
    engine.cancel(1)
    engine.cancel(0)
    engine.cancel(5)
    assert engine.step() is None
    assert engine.idle


@pytest.mark.parametrize("length", [1, 3, 7])
def test_the_context_ends_an_answer(length: int) -> None:
    ring = Ring(2, 1, context=8)
    ring.add(request(0, tuple(range(length)), max_tokens=100))
    ring.drain()
    assert len(ring.answers[0]) == 8 - length
    assert ring.finished[0] == "length"


def test_an_eos_token_is_returned_and_ends_the_answer_even_as_the_last_one_allowed() -> None:
    whole = plain_tokens(request(0, max_tokens=6), CONTEXT)
    ring = Ring(2, 1)
    ring.add(request(0, max_tokens=6, eos=frozenset({whole[5]})))
    ring.drain()
    end = whole.index(whole[5]) + 1
    assert ring.answers[0] == whole[:end]
    assert ring.finished[0] == "stop"


@pytest.mark.parametrize(
    ("bad", "ref"),
    [
        (request(0, ()), "prompt-empty"),
        (request(0, (1,) * 8), "prompt-too-long"),
        (request(0, (1,), max_tokens=0), "max-tokens-wrong"),
    ],
)
def test_what_cannot_be_served_is_refused(bad: Request, ref: str) -> None:
    engine = Engine(stages=1, context=8, streams=1)
    with pytest.raises(InputError) as caught:
        engine.add(bad)
    assert caught.value.ref == ref
    assert engine.idle


@pytest.mark.parametrize(
    "wrong",
    [
        frames.Sampled(1, 2, ((0, (5,)),)),
        frames.Sampled(2, 1, ((0, (5,)),)),
        frames.Sampled(1, 1, ()),
        frames.Sampled(1, 1, ((1, (5,)),)),
        frames.Sampled(1, 1, ((0, ()),)),
        frames.Sampled(1, 1, ((0, (5, 6)),)),
        frames.Sampled(1, 1, ((0, (-1,)),)),
        frames.Sampled(1, 1, ((0, (5,)), (0, (5,)))),
    ],
)
def test_a_result_that_does_not_fit_is_a_fault_and_changes_nothing(wrong: frames.Sampled) -> None:
    engine = Engine(stages=1, context=8, streams=1)
    engine.add(request(0))
    while engine.step():
        pass
    with pytest.raises(IntegrityError):
        engine.receive(wrong)
    check(engine)
    assert engine.receive(frames.Sampled(1, 1, ((0, (5,)),))) == [Token(0, 5, None)]
    with pytest.raises(IntegrityError):
        engine.receive(frames.Sampled(1, 1, ((0, (5,)),)))


def test_losing_a_stage_ends_everything_and_results_of_before_are_dropped() -> None:
    engine = Engine(stages=1, context=8, streams=1)
    engine.add(request(0))
    engine.add(request(1))
    while engine.step():
        pass
    assert engine.lose("why") == [Lost(0, "why"), Lost(1, "why")]
    assert engine.idle
    assert engine.receive(frames.Sampled(1, 1, ((0, (5,)),))) == []
    engine.add(request(2))
    outgoing = engine.step()
    assert outgoing
    assert outgoing[0] == frames.Open(2, 0, 2, greedy())


@given(st.lists(st.booleans() | st.integers(0, 7), max_size=60), st.integers(1, 8))
def test_the_lowest_free_slot_goes_first(actions: list[bool | int], slots: int) -> None:
    table = SlotTable(slots)
    anybody = (), 1
    held: set[int] = set()
    for action in actions:
        if isinstance(action, bool):
            assert table.can_allocate(*anybody) == (len(held) < slots)
            if table.can_allocate(*anybody):
                slot = table.allocate(100 + len(held), *anybody)
                assert slot == min(set(range(slots)) - held)
                held.add(slot)
        elif action in held:
            table.free(action)
            held.discard(action)
        assert table._held.keys() == held


def test_a_fake_stage_would_notice() -> None:
    """The fake is the judge of all of the above, so it must not be blind."""
    assert plain_tokens(request(0, (1, 2, 3)), CONTEXT) != plain_tokens(request(0, (1, 3, 2)), CONTEXT)
    worker = FakeDecoder(0, 4, slots=2, context=8)
    worker.step([Span(0, 0, 2, 0)], {"input_ids": np.array([1, 2], np.int64)})
    for bad in ([Span(0, 1, 1, 1)], [Span(0, 3, 1, 1)], [Span(1, 1, 1, 1)]):
        with pytest.raises(AssertionError):
            worker.step(bad, {"input_ids": np.array([1], np.int64)})
    assert fake_spec(0, 4).last
