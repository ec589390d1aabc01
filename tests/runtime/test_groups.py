"""How many groups those who decode form: by the plan's times, and what of that is in the ring."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine
from ruvrun.engine.groups import LEAST, groups_of
from ruvrun.manifest import Expected, Plan, Space
from ruvrun.pipeline.head import engine_of
from tests.runtime.engine_ring import Ring, request
from tests.runtime.fake_ring import fake_manifest
from tests.runtime.fakes import FakeDecoder, plain_tokens

MEASURED = {"ONNX Runtime": (9.9, 11.6, 17.8, 29.7, 51.6), "OpenVINO": (11.1, 11.8, 14.5, 20.6, 32.6)}
"""Milliseconds of steps of 1, 2, 4, 8, 16 rows (SmolLM2-135M on a core)."""


def sizes_of(count: int, groups: int) -> list[int]:
    return [count // groups + (number < count % groups) for number in range(groups)]


def round_ms(steps: Sequence[Sequence[float]], sizes: Sequence[int]) -> float:
    """In which groups of these sizes get a token each, one behind the other through all stages, again and again."""
    free, back, ends = [0.0] * len(steps), [0.0] * len(sizes), []
    for _ in range(60):
        for group, rows in enumerate(sizes):
            at = back[group]
            for stage, own in enumerate(steps):
                free[stage] = at = max(at, free[stage]) + own[rows - 1]
            back[group] = at
        ends.append(at)
    return (ends[-1] - ends[19]) / 40


NEAR = 1.03
"""Rounds may come in turns of several, a long one and a short one, of which the mean is not over whole turns."""


@given(
    st.integers(1, 4),
    st.lists(st.lists(st.floats(0.0, 5.0), min_size=9, max_size=9), min_size=4, max_size=4),
    st.lists(st.floats(0.5, 30.0), min_size=4, max_size=4),
)
@settings(deadline=None, max_examples=80)
def test_there_are_as_many_as_stages_unless_a_round_is_shorter_with_others(
    stages: int, more: list[list[float]], first: list[float]
) -> None:
    """Whatever each further row costs on each stage; played step by step."""
    steps = [[first[stage] + sum(more[stage][:rows]) for rows in range(len(more[stage]))] for stage in range(stages)]
    found = groups_of(steps)
    assert len(found) == len(steps[0])
    for count, groups in enumerate(found, 1):
        usual = min(count, stages)
        fewest = -(-count // -(-count // stages))
        allowed = {fewest, *range(usual, min(2 * stages, count + 1))}
        rounds = {each: round_ms(steps, sizes_of(count, each)) for each in allowed}
        assert groups in allowed
        assert rounds[groups] <= NEAR * min(rounds.values()) / (1 - LEAST)
        if groups != usual:
            assert rounds[groups] <= NEAR * (1 - LEAST) * rounds[usual]
            event("more" if groups > usual else "fewer")


@pytest.mark.parametrize("backend", MEASURED)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 8])
def test_of_equal_stages_as_measured_every_one_has_a_step(backend: str, stages: int) -> None:
    known = Expected(node="a", rows=[1, 2, 4, 8, 16], ms=list(MEASURED[backend]))
    found = groups_of([[known.step_ms(rows) or 0.0 for rows in range(1, 33)]] * stages)
    assert all(groups >= min(count, stages) for count, groups in enumerate(found, 1))
    if stages <= 2:
        assert set(found[1:]) == {stages}


def test_a_slow_stage_has_all_of_them_in_fewer_steps_where_that_is_quicker() -> None:
    slow, quick = [10 + 1.2 * rows for rows in range(8)], [2 + 0.2 * rows for rows in range(8)]
    assert groups_of([slow, quick, quick]) == (1, 2, 3, 2, 3, 3, 3, 3)


def test_a_few_more_than_stages_are_more_steps_where_a_row_costs_much() -> None:
    steep = [10.0 + 9.0 * rows for rows in range(6)]
    assert groups_of([steep] * 4) == (1, 2, 3, 4, 5, 6)


@pytest.mark.parametrize("known", [True, False])
def test_the_plan_says_how_many(known: bool) -> None:
    """Where it knows the steps of every stage; else there are as many as stages."""
    made = fake_manifest(["a", "b", "c"])
    firsts = (("a", 10.0), ("b", 2.0), ("c", 2.0))
    expected = [Expected(node=name, rows=[1, 8], ms=[first, 1.84 * first]) for name, first in firsts]
    made = msgspec.structs.replace(made, plan=Plan(expected=expected if known else expected[:2]))
    engine = engine_of(made, made.pipeline[0], Space(context=64, streams=4), 1, serving=True)
    assert engine._scheduler._groups == ((1, 2, 3, 2) if known else (1, 2, 3))


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("many", range(1, 10))
def test_as_many_steps_as_stages_are_in_the_ring_and_as_equal_as_can_be(stages: int, many: int) -> None:
    """Once all have come; and again when one has gone."""
    ring = Ring(stages, many, context=500)
    for number in range(many):
        ring.add(request(number, (number, 3), max_tokens=400))
    for left in (many, many - 1):
        for _ in range(60):
            ring.turn()
        for _ in range(10):
            ring.turn()
            while ring.send():
                pass
            assert sum(flight.decode for flight in ring.engine._flights) == min(stages, left)
        executor = ring.workers[0]._executor
        assert isinstance(executor, FakeDecoder)
        if left:
            assert sorted(map(len, executor.windows[-min(stages, left) :])) == sorted(sizes_of(left, min(stages, left)))
        ring.cancel(many - 1)


def test_as_many_groups_as_it_is_told() -> None:
    """Five in two groups of a ring of four stages, and in five."""
    for counts, sizes in (((1, 2, 2, 2, 2), [3, 2]), ((1, 2, 3, 4, 5), [1] * 5)):
        ring = Ring(4, 5, context=300, groups=counts)
        asked = [request(number, (number, 3), max_tokens=100) for number in range(5)]
        for one in asked:
            ring.add(one)
        for _ in range(100):
            ring.turn()
        executor = ring.workers[0]._executor
        assert isinstance(executor, FakeDecoder)
        assert sorted(map(len, executor.windows[-len(sizes) :]), reverse=True) == sizes
        ring.drain()
        assert [ring.answers[one.id] for one in asked] == [plain_tokens(one, 300) for one in asked]


@pytest.mark.parametrize("wrong", [(2,), (1, 2, 4), (0,)])
def test_more_groups_than_sequences_or_than_leave_room_for_a_chunk_cannot_be(wrong: tuple[int, ...]) -> None:
    with pytest.raises(AssertionError):
        Engine(stages=2, context=8, streams=4, groups=wrong)


def test_chunks_go_to_stages_that_would_have_nothing_to_do() -> None:
    """Beside one who decodes in a ring of four stages, three chunks or four are under way; that one keeps its pace."""
    ring = Ring(4, 2, context=300)
    ring.add(request(0, (1, 2), max_tokens=200))
    while len(ring.answers[0]) < 10:
        ring.turn()
    ring.add(late := request(1, tuple(range(60)) * 3, max_tokens=3))
    before, turns = len(ring.answers[0]), 0
    while not ring.answers[1]:
        while ring.send():
            pass
        if ring.engine._roster.running[1].prompt_left:
            assert [flight.decode for flight in ring.engine._flights].count(False) in (3, 4)
        ring.turn()
        turns += 1
    chunks = sum(isinstance(each, frames.Step) and each.seqs[0].id == 1 for each in ring.sent)
    assert chunks == 45
    assert len(ring.answers[0]) - before >= turns // 5 - 1, "once in five turns, and without the newcomer in four"
    ring.drain()
    assert ring.answers[1] == plain_tokens(late, 300)


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 40), st.integers(2, 9), st.booleans())
@settings(deadline=None, max_examples=60)
def test_a_newcomer_waits_for_nobodys_end(stages: int, others: int, length: int, chunk: int, ragged: bool) -> None:
    """Its first token comes when its chunks have gone, a step of some group before each, and nobody has ended."""
    ring = Ring(stages, others + 1, chunk=chunk, context=1000, ragged=ragged)
    for number in range(others):
        ring.add(request(number, (number, 9), max_tokens=900))
    while len(ring.decoding) < others:
        ring.turn()
    before = [len(ring.answers[number]) for number in range(others)]
    ring.add(request(others, tuple(range(length)), max_tokens=2))
    while not ring.answers[others]:
        ring.turn()
    assert not ring.finished
    gained = max(len(ring.answers[number]) - before[number] for number in range(others))
    assert gained <= -(-length // chunk) + 2 * stages


def test_of_a_stage_whose_steps_nobody_knows_nothing_is_said() -> None:
    assert groups_of([[], [1.0, 2.0]]) == ()
