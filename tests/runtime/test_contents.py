"""What lies in slots and is used again; in engines with real workers, and alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import contents as module
from ruvrun.engine.contents import Contents
from ruvrun.errors import IntegrityError
from ruvrun.pipeline.worker import Worker
from tests.runtime.engine_ring import Ring, request
from tests.runtime.fakes import FakeDecoder, fake_spec, greedy, plain_tokens

CONTEXT = 64
STEM = tuple(range(20))


def prompts_of(ring: Ring) -> list[tuple[int, int, int]]:
    """Sequence, first position and number of tokens of every chunk that was sent."""
    steps = [message for message in ring.sent if isinstance(message, frames.Step)]
    spans = [seq for step in steps for seq in step.seqs]
    return [(seq.id, seq.position, seq.count) for seq in spans if seq.position < len(ring.prompts[seq.id])]


def copied(ring: Ring) -> list[tuple[int, int, int]]:
    found = [worker._executor for worker in ring.workers]
    assert all(isinstance(each, FakeDecoder) for each in found)
    made = [each.copied for each in found]  # type: ignore[union-attr] # checked above
    assert made == [made[0]] * len(made), "on every stage alike"
    return made[0]


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_a_prompt_that_begins_like_another_is_computed_from_where_they_part(stages: int) -> None:
    ring = Ring(stages, 3, chunk=8, context=CONTEXT, reuse=4)
    ring.add(first := request(0, (*STEM, 30, 31)))
    ring.drain()
    ring.sent.clear()
    ring.engine._numbered = 0
    for worker in ring.workers:
        worker._next = 0
    ring.add(second := request(1, (*STEM[:18], 40, 41, 42)))
    ring.drain()
    assert prompts_of(ring) == [(1, 16, 5)]
    assert (ring.answers[0], ring.answers[1]) == (plain_tokens(first, CONTEXT), plain_tokens(second, CONTEXT))
    assert copied(ring) == [(0, 1, 16)]


def test_those_who_come_together_compute_what_they_share_once() -> None:
    ring = Ring(2, 4, chunk=8, context=CONTEXT, reuse=4)
    asked = [request(number, (*STEM, 30 + number, 50)) for number in range(4)]
    for one in asked:
        ring.add(one)
    ring.drain()
    assert prompts_of(ring) == [(0, 0, 8), (0, 8, 8), (0, 16, 6), (1, 20, 2), (2, 20, 2), (3, 20, 2)]
    assert [ring.answers[one.id] for one in asked] == [plain_tokens(one, CONTEXT) for one in asked]


def test_the_next_turn_of_a_chat_goes_on_where_the_last_prompt_ended_and_nothing_moves() -> None:
    """What was generated is computed again: in the other mode."""
    ring = Ring(2, 3, chunk=64, context=CONTEXT, reuse=4)
    prompt = STEM
    for turn in range(3):
        ring.add(one := request(turn, prompt, max_tokens=5))
        ring.drain()
        assert ring.answers[turn] == plain_tokens(one, CONTEXT)
        prompt = (*prompt, *ring.answers[turn], 50, 51, 52)
    assert prompts_of(ring) == [(0, 0, 20), (1, 20, 8), (2, 28, 8)]
    assert copied(ring) == [(0, 0, 20), (0, 0, 28)]


def test_at_least_two_tokens_are_left_to_compute() -> None:
    for length, found in ((8, 4), (9, 4), (10, 8), (5, 0), (6, 4), (1, 0)):
        contents = Contents(2, 4)
        contents.begin(0, tuple(range(100)))
        contents.extend(0, 100)
        assert contents.find(tuple(range(length)))[1] == found, length


def test_only_what_was_sent_is_there() -> None:
    contents = Contents(2, 4)
    contents.begin(0, STEM)
    for end, found in ((3, 0), (7, 4), (8, 8), (20, 16)):
        contents.extend(0, end)
        assert contents.find(STEM) == ((0, found) if found else (-1, 0))
        contents.check()


def test_a_slot_that_is_taken_has_what_its_new_prompt_shares_with_others_and_no_more() -> None:
    contents = Contents(2, 4)
    contents.begin(0, STEM)
    contents.extend(0, 20)
    assert contents.begin(0, (*STEM[:8], *(50,) * 12)) == (0, 8)
    contents.check()
    assert contents.find(STEM) == (0, 8)
    assert contents.begin(1, STEM) == (0, 8)
    assert contents.begin(0, (50,) * 20) == (-1, 0)
    contents.check()
    assert contents.find(STEM) == (1, 8)


@pytest.mark.parametrize("slot", [0, 1, 2])
def test_nothing_moves_where_the_slot_itself_has_it(slot: int) -> None:
    contents = Contents(3, 4)
    for each in range(3):
        contents.begin(each, STEM)
        contents.extend(each, 20)
    assert contents.begin(slot, (*STEM, 50, 51)) == (slot, 20)


def test_made_up_hashes_give_nobody_what_is_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "hash", lambda _: 7, raising=False)
    contents = Contents(2, 4)
    contents.begin(0, STEM)
    contents.extend(0, 20)
    assert contents.find((*STEM[:7], 60, *STEM[8:])) == (-1, 0)


@pytest.mark.parametrize(
    ("held", "expected"), [((), 3), ((2,), 3), ((1,), 2), ((0, 2), 1), ((3,), 2), ((1, 2), 3), ((0, 1, 3), 2)]
)
def test_first_no_holes_then_what_was_of_use_the_longest_ago(held: tuple[int, ...], expected: int) -> None:
    contents = Contents(4, 4)
    for slot in (3, 2, 0, 1):  # 3 the longest ago, 1 last
        contents.begin(slot, (slot + 40,) * 20)
        contents.extend(slot, 20)
    assert contents.choose([slot for slot in range(4) if slot not in held], (7,) * 20) == expected


def test_what_was_copied_from_was_of_use() -> None:
    contents = Contents(3, 4)
    for slot in range(3):
        contents.begin(slot, (slot + 40,) * 20)
        contents.extend(slot, 20)
    assert contents.choose([0, 1, 2], (7,) * 20) == 0
    assert contents.begin(2, (*(40,) * 20, 50, 51)) == (0, 20)
    assert contents.choose([0, 1, 2], (7,) * 20) == 1


def test_a_prompt_goes_where_nothing_but_its_own_beginning_lies() -> None:
    contents = Contents(3, 4)
    for slot, prompt in ((0, (1,) * 20), (1, STEM), (2, (2,) * 20)):
        contents.begin(slot, prompt)
        contents.extend(slot, 20)
    assert contents.choose([0, 1, 2], (*STEM, 50, 51, 52)) == 1
    assert contents.choose([0, 1, 2], (*STEM[:8], 50, 51, 52)) == 0, "what else lies in 1 would be lost"


@given(st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(0, 1), min_size=1, max_size=12)), max_size=30))
@settings(deadline=None)
def test_what_is_found_is_there(turns: list[tuple[int, list[int]]]) -> None:
    contents = Contents(4, 2)
    lies: dict[int, tuple[int, ...]] = {}
    for slot, tokens in turns:
        prompt = tuple(tokens)
        source, count = contents.find(prompt)
        assert count % 2 == 0
        assert count <= max(0, len(prompt) - 2)
        best = max((_shared(each, prompt) for each in lies.values()), default=0)
        assert count == max(0, min(best, len(prompt) - 2) // 2 * 2)
        if count:
            assert lies[source][:count] == prompt[:count]
        begun = contents.begin(slot, prompt)
        assert begun[1] == count
        assert not count or lies[begun[0]][:count] == prompt[:count]
        contents.extend(slot, len(prompt))
        lies[slot] = prompt[: len(prompt) // 2 * 2]
        contents.check()


def _shared(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


@pytest.mark.parametrize(
    "wrong",
    [(1, 0, 4), (1, 0, 0 + 9), (0, 0, 2), (1, 1, 2), (4, 0, 2), (-1, 0, 2), (1, -1, 2), (1, 4, 2)],
    ids=["more than there is", "far more", "a slot that is held", "an empty source", "no slot", "none", "-1", "beyond"],
)
def test_a_copy_of_what_is_not_there_is_a_fault(wrong: tuple[int, int, int]) -> None:
    worker = Worker(FakeDecoder(0, 4, slots=2, context=16), fake_spec(0, 4))
    worker.handle(frames.Open(1, 0, 5, greedy()), {})
    step = frames.Step(1, 1, (frames.SeqStep(5, 0, 0, 3, 1),))
    worker.handle(step, {"input_ids": np.array([1, 2, 3], np.int64)})
    with pytest.raises(IntegrityError, match="begin"):
        worker.handle(frames.Open(1, 2, 6, greedy(), b"", (), *wrong), {})
