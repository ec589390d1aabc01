"""Which sequences form the next step: the scheduler alone, and in an engine without stages."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun import frames
from ruvrun.engine import Engine, Request
from ruvrun.engine.scheduler import Scheduler, chunk_of
from ruvrun.engine.sequence import Sequence
from tests.runtime.engine_ring import Ring, request
from tests.runtime.fakes import greedy, plain_tokens


@given(st.integers(1, 2000), st.integers(2, 64))
def test_chunks_cover_a_prompt_and_none_is_single(length: int, chunk: int) -> None:
    sizes: list[int] = []
    while sum(sizes) < length:
        sizes.append(chunk_of(length - sum(sizes), chunk))
    assert sum(sizes) == length
    assert all(size == chunk for size in sizes[:-1])
    assert sizes == [1] or 2 <= sizes[-1] <= chunk + 1


@pytest.mark.parametrize(
    ("since", "due", "expected"),
    [
        ((1, 1, 1, 1), (), [0, 1]),
        ((5, 4, 3, 9), (), [2, 3]),
        ((3, 9, 5, 4), (), [0, 1]),
        ((1, 1, 7, 8), (0,), [2, 3]),
        ((4, 3, 2, 1), (0, 3), [2]),
        ((1, 2, 3, 4), (0, 3), [1]),
        ((1, 2, 3, 4), (0, 1, 2, 3), []),
    ],
)
def test_the_group_that_waits_longest_goes_first_and_whole_ones_before_parts(
    since: tuple[int, ...], due: tuple[int, ...], expected: list[int]
) -> None:
    running = []
    for slot, ready_since in enumerate(since):
        one = Sequence(request(slot, (1,)))
        one.slot, one.sent, one.since, one.due, one.decoding = slot, 1, ready_since, slot in due, True
        one.tokens.append(7)
        running.append(one)
    under_way = min(1, len(due))
    parts = Scheduler(stages=2, chunk=4).next(running[::-1], under_way, under_way)
    assert [part.sequence.slot for part in parts] == expected
    assert all((part.count, part.rows) == (1, 1) for part in parts)
    assert Scheduler(stages=2, chunk=4).next(running, 2, 2) == []


def test_who_returned_first_goes_first() -> None:
    engine = Engine(stages=2, context=100, streams=4)
    for number in range(4):
        engine.add(Request(number, (number,), 50, greedy(), frozenset()))
    ring: deque[frames.Step] = deque()

    def send() -> None:
        while outgoing := engine.step():
            if isinstance(outgoing[0], frames.Step):
                ring.append(outgoing[0])

    def receive() -> None:
        step = ring.popleft()
        engine.receive(frames.Sampled(1, step.step, tuple((seq.id, (9,)) for seq in step.seqs)))

    for _ in range(30):
        send()
        receive()
    for _ in range(2):
        send()
        slots = [[seq.slot for seq in step.seqs] for step in ring]
        assert sorted(slots) == [[0, 1], [2, 3]]
        receive()
        receive()
        send()
        assert [[seq.slot for seq in step.seqs] for step in ring] == slots
        receive()


@pytest.mark.parametrize("decoding", [1, 2, 3, 6])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_chunk_goes_with_those_who_decode_and_alone_only_to_a_stage_that_would_be_idle(
    stages: int, decoding: int
) -> None:
    ring = Ring(stages, decoding + 1, chunk=16, context=200, beside=(4,), ragged=True)
    for number in range(decoding):
        ring.add(request(number, (number, 1), max_tokens=150))
    while len(ring.decoding) < decoding:
        ring.turn()
    for _ in range(4 * stages):
        ring.turn()
    while ring.send():
        pass
    sent = len(ring.sent)
    late = request(50, tuple(range(61)), max_tokens=3)
    ring.add(late)
    assert ring.send() == (decoding < stages)
    while 50 not in ring.decoding:
        ring.turn()
    steps = [step for step in ring.sent[sent:] if isinstance(step, frames.Step)]
    last = max(number for number, step in enumerate(steps) if any(seq.id == 50 for seq in step.seqs))
    together = steps[: last + 1]
    assert all(any(seq.id == 50 for seq in step.seqs) for step in together), "every step takes some of the prompt along"
    assert {seq.count for step in together[:-1] for seq in step.seqs if seq.id == 50} == {4}
    alone = sum(len(step.seqs) == 1 for step in together)
    assert (alone > 0) == (decoding < stages)
    ring.drain()
    assert ring.answers[50] == plain_tokens(late, 200)


def test_chunks_of_a_prompt_fill_the_ring_when_nobody_decodes() -> None:
    engine = Engine(stages=2, context=100, streams=2, chunk=4)
    engine.add(request(7, tuple(range(50))))
    messages = [engine.step() for _ in range(6)]
    assert messages[5] is None
    opened, *steps = [message[0] for message in messages[:5] if message]
    assert opened == frames.Open(1, 0, 7, greedy())
    assert [step.seqs for step in steps if isinstance(step, frames.Step)] == [
        (frames.SeqStep(7, 0, position, 4, 0),) for position in (0, 4, 8, 12)
    ]


def test_a_rest_of_one_token_joins_the_chunk_before_it() -> None:
    engine = Engine(stages=1, context=100, streams=1, chunk=4)
    engine.add(request(1, tuple(range(9))))
    engine.step()
    first, second = engine.step(), engine.step()
    assert first
    assert second
    assert first[0].seqs == (frames.SeqStep(1, 0, 0, 4, 0),)  # type: ignore[union-attr] # a Step
    assert second[0].seqs == (frames.SeqStep(1, 0, 4, 5, 1),)  # type: ignore[union-attr] # a Step
    assert second[1]["input_ids"].tolist() == [4, 5, 6, 7, 8]
