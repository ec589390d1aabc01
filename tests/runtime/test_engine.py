"""What the engine does with a request, a slot, an answer that does not fit; with real workers on a fake model."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine, Lost, Request, Token
from ruvrun.engine.kv import SlotTable
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import Span
from tests.runtime.consistency import check
from tests.runtime.engine_ring import CONTEXT, Ring, request
from tests.runtime.fakes import FakeDecoder, fake_spec, greedy, plain_tokens


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
