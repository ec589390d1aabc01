"""At what pace sequences go on beside each other: no one who decodes is left behind, whoever comes or reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun import frames
from tests.runtime.engine_ring import Ring, request
from tests.runtime.fakes import FakeDecoder


@pytest.mark.parametrize(
    ("stages", "groups"),
    [
        (1, [(0, 1, 2, 3, 4)]),
        (2, [(0,)]),
        (2, [(0,), (1,)]),
        (2, [(0, 1), (2,)]),
        (2, [(0, 1), (2, 3)]),
        (3, [(0, 1), (2,), (3,)]),
        (3, [(0, 1, 2), (3, 4), (5, 6)]),
        (4, [(0,), (1,), (2,), (3,)]),
        (4, [(0, 1), (2,), (3,), (4,)]),
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


@pytest.mark.parametrize("ragged", [False, True])
def test_a_long_prompt_slows_decoding_down_but_does_not_stop_it(ragged: bool) -> None:
    """A token for each chunk between two steps; or for two, of which one is in its step and one in the other stage."""
    ring = Ring(2, 2, context=200, ragged=ragged)
    ring.add(request(0, max_tokens=100))
    while not ring.decoding:
        ring.turn()
    ring.add(request(1, tuple(range(60)) * 2))
    before = len(ring.answers[0])
    while not ring.answers[1]:
        ring.turn()
    chunks = sum(isinstance(m, frames.Step) and m.seqs[-1].id == 1 for m in ring.sent)
    assert chunks == 30
    assert len(ring.answers[0]) - before >= chunks // (1 + ragged) - ring.engine.window


def test_who_computes_known_tokens_again_waits_for_its_turn() -> None:
    """Two steps come back together, one of new tokens and one of known ones: they go again in the order they came."""
    ring = Ring(2, 2, context=200)
    ring.add(request(0, (0, 5), max_tokens=150))
    while len(ring.answers[0]) < 40:
        ring.turn()
    (again,) = ring.abandon(0)
    ring.add(request(1, (1, 5), max_tokens=150))
    while not ring.answers[1]:
        ring.turn()
    ring.engine.resume(again)

    def under_way() -> list[int]:
        return [each.name for flight in ring.engine._flights for each in (*flight.due, *flight.known)]

    def go_round(times: int) -> None:
        for _ in range(times):
            for stage in range(2):
                ring.work(stage)
            ring.receive()
        while ring.send():
            pass

    for _ in range(20):
        if under_way() != [1, 0] or len(ring.inboxes[0]) != 2:
            go_round(1)
    for _ in range(8):
        assert under_way() == [1, 0]
        go_round(2)
    assert ring.engine._flights[1].known, "they are known still"
