"""What the ONNX Runtime executor promises, bit by bit: only how many tokens of a sequence are in a call matters.

Every stage here is a whole tiny decoder, and all comparisons are of bytes. See law 1 in the design: *chunk* mode (two
or more tokens of a sequence in a call) and *single* mode (one) differ from each other, and from nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvcompile.lower.weights import WeightStore
from ruvrun.executors import Span
from ruvrun.executors.chunked import STRIPE, calls_of
from ruvrun.executors.onnxruntime import OnnxDecoder
from tests.decoders import Stage, open_decoders, tiny_program, write_stages

CONTEXT, SLOTS, N = 48, 6, 24
IDS = np.random.default_rng(7).integers(3, 300, (SLOTS, CONTEXT))


@pytest.fixture(scope="module")
def stage(tmp_path_factory) -> Stage:
    folder: Path = tmp_path_factory.mktemp("executor")
    (made,) = write_stages(tiny_program(folder), (), folder, WeightStore(folder / "store"))
    return made


@pytest.fixture
def decoder(stage: Stage) -> OnnxDecoder:
    (opened,) = open_decoders([stage], context=CONTEXT, slots=SLOTS)
    return opened


def step(decoder: OnnxDecoder, *spans: Span) -> np.ndarray:
    """One step; sequence n always has the tokens ``IDS[n]`` and slot n unless a test maps them."""
    ids = np.concatenate([IDS[span.slot, span.position : span.position + span.count] for span in spans])
    return decoder.step(spans, {"input_ids": ids})["logits"].copy()


def prompt(decoder: OnnxDecoder, slot: int, sizes: Sequence[int]) -> np.ndarray:
    """A prompt in chunks of these sizes; logits of every position."""
    found, at = [], 0
    for size in sizes:
        found.append(step(decoder, Span(slot, at, size, size)))
        at += size
    return np.concatenate(found)


def cache(decoder: OnnxDecoder, slot: int, length: int) -> bytes:
    """Keys and values of a slot's first positions, as they lie in memory."""
    return b"".join(decoder._kv[name][slot, :, :length].tobytes() for name in sorted(decoder._kv))


@pytest.mark.parametrize("sizes", [[2] * 12, [3] * 8, [5, 7, 12], [22, 2], [16, 8]], ids=str)
def test_chunks_of_two_or_more_are_equal_among_themselves(decoder, sizes) -> None:
    whole, kept = prompt(decoder, 0, [N]), cache(decoder, 0, N)
    decoder._kv["past_key.0"][0] = np.nan  # what is not written again would be seen
    again = prompt(decoder, 0, sizes)
    assert again.tobytes() == whole.tobytes()
    assert cache(decoder, 0, N) == kept


@pytest.mark.parametrize("sizes", [[257], [129, 128], [128, 129]], ids=str)
def test_nor_are_long_ones_of_which_a_single_row_would_be_left_over(tmp_path, sizes) -> None:
    stages = write_stages(tiny_program(tmp_path, context=260), (), tmp_path, WeightStore(tmp_path / "store"))
    (decoder,) = open_decoders(stages, context=260, slots=2)
    ids = np.random.default_rng(9).integers(3, 300, 257)

    def run(sizes: Sequence[int], rows: int) -> list[np.ndarray]:
        at, found = 0, []
        for size in sizes:
            wanted = min(rows, size)
            found.append(decoder.step([Span(0, at, size, wanted)], {"input_ids": ids[at : at + size]})["logits"].copy())
            at += size
        return found

    whole = np.concatenate(run([7] * 35 + [12], 12))
    assert len(whole) == 257
    assert np.array_equal(np.concatenate(run(sizes, 257)), whole)
    assert all(np.array_equal(run(sizes, rows)[-1], whole[257 - rows :]) for rows in (1, 2, 5))


@given(st.integers(0, 50), st.integers(1, 700), st.integers(0, 700))
def test_calls_are_a_span_and_none_of_them_computes_a_row_alone(position: int, count: int, rows: int) -> None:
    calls = list(calls_of(Span(3, position, count, min(rows, count))))
    assert [each.position for each in calls] == [position, *(each.position + each.count for each in calls)][
        : len(calls)
    ]
    assert sum(each.count for each in calls) == count
    assert sum(each.rows for each in calls) == min(rows, count)
    assert all(each.rows <= each.count and (each.count % STRIPE != 1 or count == 1) for each in calls)
    assert all(each.rows == each.count for each in calls[1:] if calls[0].rows)


def test_the_slot_does_not_matter(stage) -> None:
    found = []
    for slot in range(SLOTS):
        (decoder,) = open_decoders([stage], context=CONTEXT, slots=SLOTS)
        ids = IDS[0, :N]
        first = decoder.step([Span(slot, 0, N, 1)], {"input_ids": ids})["logits"].tobytes()
        then = decoder.step([Span(slot, N, 1, 1)], {"input_ids": IDS[0, N : N + 1]})["logits"].tobytes()
        found.append((first, then))
    assert len(set(found)) == 1


@pytest.mark.parametrize(
    "slots", [(0, 1), (2, 3, 4), (0, 1, 2, 3, 4, 5), (0, 2), (1, 4), (0, 1, 3, 5), (0, 2, 3, 4)], ids=str
)
def test_decoding_in_company_is_decoding_alone(decoder, slots) -> None:
    """A window of neighbours, and sequences in slots that are none, at positions of their own."""
    lengths = {slot: 5 + 3 * slot for slot in slots}
    for slot in slots:
        prompt(decoder, slot, [lengths[slot]])
    alone = {}
    for number in range(4):
        for slot in slots:
            alone[slot, number] = step(decoder, Span(slot, lengths[slot] + number, 1, 1)).tobytes()
    kept = {slot: cache(decoder, slot, lengths[slot] + 4) for slot in slots}
    for number in range(4):
        rows = step(decoder, *(Span(slot, lengths[slot] + number, 1, 1) for slot in slots))
        assert rows.shape == (len(slots), 300)
        for row, slot in zip(rows, slots, strict=True):
            assert row.tobytes() == alone[slot, number], f"slot {slot}, token {number}"
    assert kept == {slot: cache(decoder, slot, lengths[slot] + 4) for slot in slots}


def test_a_prompt_beside_decoding_changes_neither(decoder) -> None:
    for slot in (0, 2):
        prompt(decoder, slot, [6])
    first, second = (step(decoder, Span(slot, 6, 1, 1)) for slot in (0, 2))
    third = prompt(decoder, 1, [9])[-1:]
    rows = step(decoder, Span(0, 6, 1, 1), Span(1, 0, 9, 1), Span(2, 6, 1, 1))
    assert rows.tobytes() == np.concatenate([first, third, second]).tobytes()


def test_a_rewind_is_a_smaller_position(decoder) -> None:
    prompt(decoder, 1, [8])
    first = [step(decoder, Span(1, 8 + number, 1, 1)).tobytes() for number in range(6)]
    again = [step(decoder, Span(1, 8 + number, 1, 1)).tobytes() for number in range(2, 6)]
    assert again == first[2:]
    prompt(decoder, 1, [8])
    assert [step(decoder, Span(1, 8 + number, 1, 1)).tobytes() for number in range(6)] == first


def test_a_slot_that_was_used_is_as_good_as_a_new_one(decoder) -> None:
    clean = prompt(decoder, 0, [5])
    prompt(decoder, 0, [CONTEXT])
    assert prompt(decoder, 0, [5]).tobytes() == clean.tobytes()


def test_other_slots_are_not_touched(decoder) -> None:
    """Keys and values of every slot but those of the step stay as they are, beyond their length too."""
    for buffer in decoder._kv.values():
        buffer[:] = np.float32(12345.0)
    before = {slot: cache(decoder, slot, CONTEXT) for slot in range(SLOTS)}
    prompt(decoder, 2, [7])
    step(decoder, Span(2, 7, 1, 1))
    step(decoder, Span(4, 0, 1, 1), Span(5, 0, 1, 1))
    assert {slot for slot in before if cache(decoder, slot, CONTEXT) != before[slot]} == {2, 4, 5}
    for buffer in decoder._kv.values():
        assert (buffer[2, :, 8:] == 12345.0).all()
        assert (buffer[4:, :, 1:] == 12345.0).all()


def test_only_the_rows_that_are_asked_for(decoder) -> None:
    every = prompt(decoder, 0, [6])
    assert step(decoder, Span(0, 0, 6, 1)).tobytes() == every[-1:].tobytes()
    assert step(decoder, Span(0, 0, 6, 3)).tobytes() == every[-3:].tobytes()
    assert step(decoder, Span(0, 0, 6, 0)).shape == (0, 300)
    for slot in (1, 2):
        prompt(decoder, slot, [6])
    both = step(decoder, *(Span(slot, 6, 1, 1) for slot in range(3)))
    some = step(decoder, Span(0, 6, 1, 1), Span(1, 6, 1, 0), Span(2, 6, 1, 1))
    assert some.tobytes() == both[[0, 2]].tobytes()
    assert step(decoder, Span(0, 6, 1, 0), Span(1, 6, 1, 0)).shape == (0, 300)


def test_the_last_position_of_the_context_can_be_used(decoder) -> None:
    prompt(decoder, 5, [CONTEXT - 1])
    one = step(decoder, Span(5, CONTEXT - 1, 1, 1))
    assert np.isfinite(one).all()
    assert step(decoder, Span(5, CONTEXT - 1, 1, 1)).tobytes() == one.tobytes()


def test_a_smaller_space_gives_the_same(stage) -> None:
    """Context and streams divide memory; they are no part of what is computed."""
    found = []
    for context, slots in ((CONTEXT, SLOTS), (N + 1, 1), (200, 2)):
        (decoder,) = open_decoders([stage], context=context, slots=slots)
        first = step(decoder, Span(0, 0, N, 1)).tobytes()
        found.append((first, step(decoder, Span(0, N, 1, 1)).tobytes()))
    assert len(set(found)) == 1


def test_more_windows_than_bindings_are_kept(stage, monkeypatch) -> None:
    monkeypatch.setattr("ruvrun.executors.onnxruntime._WINDOWS_KEPT", 2)
    (decoder,) = open_decoders([stage], context=CONTEXT, slots=SLOTS)
    for slot in range(SLOTS):
        prompt(decoder, slot, [4])
    first = [step(decoder, Span(slot, 4, 1, 1)).tobytes() for slot in range(SLOTS)]
    assert [step(decoder, Span(slot, 4, 1, 1)).tobytes() for slot in range(SLOTS)] == first
    assert len(decoder._windows) == 2
