"""More sequences than have space for a whole context each: who is let in, who is put back, and that nobody notices."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine, Request, blocks
from ruvrun.engine.line import LOOK, PASSES, Line
from ruvrun.engine.sequence import Sequence
from ruvrun.errors import InputError, IntegrityError
from ruvrun.executors import Span
from ruvrun.manifest.blocks import Pool
from ruvrun.pipeline.worker import Worker
from tests import strategies
from tests.runtime.engine_ring import CONTEXT, Ring, request
from tests.runtime.fakes import LAYERS, VOCAB, fake_spec, fake_workers, greedy, plain_tokens
from tests.runtime.pools import PooledFake

SIZE = 4
ONE = -(-CONTEXT // SIZE)
"""Blocks of one sequence that uses the whole context."""


@pytest.fixture(autouse=True, scope="module")
def narrow() -> Iterator[None]:
    """With less of a margin, so that space runs out more often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MARGIN", 1)
        yield


def running(ring: Ring) -> list[int]:
    return list(ring.engine._roster.running)


def waiting(ring: Ring) -> list[int]:
    return [sequence.request.id for sequence in ring.engine._roster.line]


def opens(ring: Ring) -> list[int]:
    return [message.id for message in ring.sent if isinstance(message, frames.Open)]


def free(ring: Ring) -> int:
    table = ring.engine._roster.table
    return len(table._empty) + len(table._kept)  # type: ignore[attr-defined] # of blocks


def test_short_sequences_share_the_space_of_few_long_ones() -> None:
    ring = Ring(2, 12, pool=Pool(2 * ONE, SIZE))
    asked = [request(number, (number, 5), max_tokens=2) for number in range(6)]
    for one in asked:
        ring.add(one)
    assert running(ring) == [0, 1, 2, 3, 4, 5], "though there is space for two whole contexts"
    ring.drain()
    assert opens(ring) == [0, 1, 2, 3, 4, 5], "nobody was put back"
    assert [ring.answers[one.id] for one in asked] == [plain_tokens(one, CONTEXT) for one in asked]


def grown(stages: int = 2, many: int = 3, **form: object) -> tuple[Ring, list[Request]]:
    """So many sequences that want all of the context, in the space of one; the first was put back already."""
    ring = Ring(stages, 8, pool=Pool(ONE, SIZE))
    asked = [request(number, (number, 5, 6), max_tokens=100, **form) for number in range(many)]
    for one in asked:
        ring.add(one)
    for _ in range(200):
        ring.turn()
        if waiting(ring):
            return ring, asked
    raise AssertionError("there was space for all")


@pytest.mark.parametrize("stages", [1, 2, 4])
def test_the_youngest_is_put_back_and_goes_on_with_the_same_tokens(stages: int) -> None:
    ring, asked = grown(stages)
    assert running(ring) == [0, 1]
    assert waiting(ring) == [2]
    known = len(ring.answers[2])
    assert known > 0
    ring.drain()
    for one in asked:
        assert ring.answers[one.id] == plain_tokens(one, CONTEXT)
        assert ring.finished[one.id] == "length", "the context is used up"
    assert opens(ring).count(0) == 1, "the oldest never was put back"
    assert opens(ring).count(2) > 1
    assert free(ring) == ONE


def test_what_was_put_back_is_computed_mode_by_mode() -> None:
    """The prompt in chunks, then one token after the other, and no token is asked for that is known."""
    ring, _ = grown()
    known, before = len(ring.answers[2]), len(ring.sent)
    ring.cancel(0)
    ring.cancel(1)
    ring.drain()
    spans = [seq for message in ring.sent[before:] if isinstance(message, frames.Step) for seq in message.seqs]
    again = [(seq.position, seq.count, seq.rows) for seq in spans if seq.id == 2]
    assert again[: known + 1] == [
        (0, 3, 0),
        *((3 + at, 1, 0) for at in range(known - 1)),
        (3 + known - 1, 1, 1),
    ]


def test_put_backs_are_counted() -> None:
    """Each is a sequence that is opened again; ends and cancels are none."""
    ring, asked = grown(many=4)
    ring.cancel(1)
    ring.drain()
    assert ring.engine.put_backs == len(opens(ring)) - len(asked) > 1
    assert Ring(2, 8).engine.put_backs == 0


def test_penalties_and_scores_are_as_if_nothing_had_happened() -> None:
    sampling = frames.Sampling(
        0.9, 0.95, 7, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.7, logprobs=2
    )
    ring = Ring(2, 8, pool=Pool(ONE, SIZE))
    asked = [msgspec.structs.replace(request(n, (n, 5, 6), max_tokens=100), sampling=sampling) for n in range(3)]
    for one in asked:
        ring.add(one)
    ring.drain()
    assert len(opens(ring)) > 3
    for one in asked:
        assert ring.answers[one.id] == plain_tokens(one, CONTEXT)


def test_who_was_put_back_waits_in_front_of_those_who_came_later() -> None:
    ring, _ = grown()
    ring.add(late := request(7, (9, 9), max_tokens=3))
    assert waiting(ring) == [2, 7]
    ring.cancel(0)
    assert running(ring)[:2] == [1, 2]
    ring.drain()
    assert ring.answers[7] == plain_tokens(late, CONTEXT)


def test_a_put_back_is_no_loss() -> None:
    """Who is put back often is not given up, as who is under way where stages are lost."""
    ring, _ = grown()
    for sequence in ring.engine._roster:
        assert sequence.losses == 0
    assert [each.losses for each in ring.engine.abandon()] == [1, 1, 0]


@pytest.mark.parametrize("how", ["cancel", "end"])
def test_space_is_free_at_once(how: str) -> None:
    """Before any stage has heard of it."""
    ring = Ring(2, 8, pool=Pool(ONE, SIZE))
    ring.add(request(0, (1,) * 13, max_tokens=1 if how == "end" else 9))
    assert free(ring) == ONE - 4
    while ring.send():
        pass
    if how == "cancel":
        ring.cancel(0)
    else:
        while not ring.finished:
            for stage in range(2):
                ring.work(stage)
            ring.receive()
    assert free(ring) == ONE
    assert ring.engine.running == 0
    ring.drain()
    assert not any(worker._open for worker in ring.workers)


def test_a_slot_of_the_line_that_is_given_up_lets_the_next_one_in() -> None:
    ring = Ring(1, 8, pool=Pool(ONE, SIZE))
    ring.add(request(0, (1,) * 12, max_tokens=9))
    ring.add(request(1, (2,) * 20, max_tokens=2))
    ring.engine._roster.line._waiting[1].passed = PASSES
    ring.add(request(2, (3,) * 4, max_tokens=2))
    assert waiting(ring) == [1, 2], "nobody may pass any more"
    ring.cancel(1)
    assert (running(ring), waiting(ring)) == ([0, 2], [])
    ring.drain()


def test_who_needs_less_passes_but_not_for_ever() -> None:
    ring = Ring(2, 30, context=100, pool=Pool(50, SIZE))
    ring.add(request(0, (1,) * 60, max_tokens=40))
    ring.add(request(1, (2,) * 60, max_tokens=40))
    ring.add(big := request(2, (3,) * 90, max_tokens=10))
    assert waiting(ring) == [2]
    passed, number = [], 3
    while 2 not in ring.finished:
        ring.add(request(number, (number,), max_tokens=2))
        if number in running(ring) and 2 in waiting(ring):
            passed.append(number)
        number += 1
        for _ in range(3):
            ring.turn()
    assert len(passed) == PASSES
    assert ring.answers[2] == plain_tokens(big, 100)
    ring.drain()


def test_only_the_first_of_the_line_look_for_a_gap() -> None:
    line, sequences = Line(), [Sequence(request(number)) for number in range(LOOK + 2)]
    for sequence in sequences:
        line.join(sequence)
    assert line.next(lambda each: each is sequences[LOOK]) is None
    assert line.next(lambda each: each is sequences[LOOK - 1]) is sequences[LOOK - 1]
    assert [each.passed for each in sequences] == [1] * (LOOK - 1) + [0, 0, 0]
    assert line.next(lambda each: each is sequences[LOOK]) is sequences[LOOK]
    assert line.next(lambda _: True) is sequences[0]
    assert [each.request.id for each in line.clear()] == [*range(1, LOOK - 1), LOOK + 1]
    assert len(line) == 0


def test_a_prompt_that_can_never_fit_is_refused_and_any_other_fits_alone() -> None:
    engine = Engine(stages=1, context=CONTEXT, streams=4, pool=Pool(ONE, SIZE))
    with pytest.raises(InputError) as caught:
        engine.add(request(0, (1,) * CONTEXT))
    assert caught.value.ref == "prompt-too-long"
    assert engine.idle
    ring = Ring(1, 4, pool=Pool(ONE, SIZE))
    ring.add(longest := request(1, (1,) * (CONTEXT - 1), max_tokens=9))
    ring.drain()
    assert ring.answers[1] == plain_tokens(longest, CONTEXT)
    assert ring.finished[1] == "length"


@given(st.data(), st.integers(1, LAYERS), st.integers(0, 8), st.sampled_from([0, SIZE]))
@settings(deadline=None, max_examples=60)
def test_the_same_tokens_however_short_space_is(data: st.DataObject, stages: int, more: int, reuse: int) -> None:
    ring = Ring(stages, 12, chunk=data.draw(st.integers(2, 9)), reuse=reuse, pool=Pool(ONE + more, SIZE))
    asked = [data.draw(strategies.requests(number, context=CONTEXT, vocab=VOCAB)) for number in range(8)]
    for one in asked:
        ring.add(one)
        for _ in range(data.draw(st.integers(0, 6))):
            ring.turn()
    ring.drain()
    for one in asked:
        assert ring.answers[one.id] == plain_tokens(one, CONTEXT)


@pytest.mark.parametrize("stages", [1, 3])
def test_instructions_that_all_begin_with_are_there_once_and_stay_when_one_is_put_back(stages: int) -> None:
    """Fourteen prompts of 19 tokens, of which they have 16 in common, in the space of two whole contexts."""
    stem = tuple(range(30, 46))
    ring = Ring(stages, 20, chunk=8, reuse=SIZE, context=48, pool=Pool(24, SIZE))
    asked = [request(number, (*stem, number, 7, 8), max_tokens=100) for number in range(14)]
    for one in asked:
        ring.add(one)
    ring.drain()
    for one in asked:
        assert ring.answers[one.id] == plain_tokens(one, 48)
    chunks = [seq for message in ring.sent if isinstance(message, frames.Step) for seq in message.seqs if seq.count > 1]
    assert sum(seq.count for seq in chunks if seq.position < 16) == 16, "the stem was computed once"
    assert len(opens(ring)) > 14


STEP = frames.Step(1, 1, (frames.SeqStep(5, 0, 0, 3, 0),))


@pytest.mark.parametrize(
    "wrong",
    [
        frames.Open(1, 2, 6, greedy(), b"", (), 1, -1, 4, (0, 2)),
        frames.Open(1, 2, 6, greedy(), b"", (), 1, -1, 0, (8,)),
        frames.Open(1, 2, 6, greedy(), b"", (), 9, -1, 0, (2,)),
        frames.Open(1, 2, 6, greedy(), b"", (), 0, -1, 0, (2,)),
        frames.Open(1, 2, 6, greedy(), b"", (), 1, -1, 3, (0, 2)),
        frames.Step(1, 2, (frames.SeqStep(5, 0, 3, 2, 0),)),
        frames.Step(1, 2, (frames.SeqStep(5, 0, 3, 2, 0, (8,)),)),
        frames.Step(1, 2, (frames.SeqStep(5, 1, 3, 1, 0),)),
    ],
    ids=["not full", "no block", "no slot", "held slot", "part of one", "beyond", "no such block", "another slot"],
)
def test_a_block_that_cannot_be_right_is_a_fault(wrong: frames.Ring) -> None:
    worker = Worker(PooledFake(0, 4, sequences=3, context=16, pool=Pool(8, 4)), fake_spec(0, 4))
    worker.handle(frames.Open(1, 0, 5, greedy(), b"", (), 0, -1, 0, (0,)), {})
    worker.handle(STEP, {"input_ids": np.array([1, 2, 3], np.int64)})
    tokens = sum(seq.count for seq in wrong.seqs) if isinstance(wrong, frames.Step) else 0
    with pytest.raises(IntegrityError):
        worker.handle(wrong, {"input_ids": np.ones(tokens, np.int64)})


def test_blocks_for_a_stage_of_slots_are_a_fault() -> None:
    (worker,) = fake_workers(1, slots=2, context=16)
    with pytest.raises(IntegrityError):
        worker.handle(frames.Open(1, 0, 5, greedy(), b"", (), 0, -1, 0, (0,)), {})


def test_the_fake_would_notice_a_block_that_is_another_s() -> None:
    """It is the judge of all of the above."""
    fake = PooledFake(0, 4, sequences=2, context=16, pool=Pool(4, 2))
    fake.grant(0, 0, (0, 1, 3))
    fake.grant(1, 0, (0, 2))
    fake.step([Span(0, 0, 4, 0)], {"input_ids": np.array([1, 2, 3, 4], np.int64)})
    fake.step([Span(1, 0, 2, 0)], {"input_ids": np.array([5, 6], np.int64)})
    with pytest.raises(AssertionError, match="another"):
        fake.step([Span(0, 4, 1, 0)], {"input_ids": np.array([1], np.int64)})
