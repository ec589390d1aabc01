"""Space in blocks: whose each is, which are shared, which go first when the pool needs them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun.backends import at_work, positions
from ruvrun.engine.blocks import MARGIN, BlockTable
from ruvrun.manifest import Space
from ruvrun.manifest.blocks import MOST, SHARING, Pool, pool_of, sequences_of
from ruvrun.pipeline.head import engine_of
from tests.runtime.engine_ring import request
from tests.runtime.fake_ring import fake_manifest
from tests.runtime.pressure import SHAPES, load

STEM = tuple(range(20))
SIZE = 4


def table(blocks: int = 16, slots: int = 8, *, reuse: bool = True) -> BlockTable:
    return BlockTable(slots, Pool(blocks, SIZE), reuse=reuse)


def begin(space: BlockTable, holder: int, prompt: tuple[int, ...], *, sent: bool = True) -> int:
    """A sequence with this prompt, of which all was sent; its slot."""
    slot = space.allocate(holder, prompt, len(prompt))
    space.begin(slot, prompt)
    if sent:
        space.extend(slot, len(prompt))
    return slot


def blocks_of(space: BlockTable, slot: int) -> list[int]:
    return space._lists[slot].blocks


def test_a_sequence_has_what_its_tokens_need_and_grows_by_a_block() -> None:
    space = table()
    for tokens, blocks in ((1, 1), (4, 1), (5, 2), (20, 5)):
        slot = space.allocate(tokens, (7,) * tokens, tokens)
        assert space.room(slot) == blocks * SIZE
        (more,) = space.grow(slot)
        assert blocks_of(space, slot)[-1] == more
        assert space.room(slot) == (blocks + 1) * SIZE
    space.check({0: 1, 1: 4, 2: 5, 3: 20})


def test_blocks_are_left_for_each_that_runs() -> None:
    space = table(blocks=12, reuse=False)
    assert space.can_allocate((1,) * 48, 48), "with nobody else all of it is to be had"
    space.allocate(1, (1,) * 4, 4)
    space.allocate(2, (1,) * 4, 4)
    assert MARGIN == 4
    assert space.can_allocate((1,) * 8, 8)
    assert not space.can_allocate((1,) * 9, 9)


def test_what_a_prompt_shares_is_there_once_and_asks_for_no_space() -> None:
    space = table(blocks=11)
    first = begin(space, 1, STEM)
    assert blocks_of(space, first) == [0, 1, 2, 3, 4]
    other = (*STEM[:18], 40, 41)
    assert space.known(other) == 16
    assert space.can_allocate(other, 20), "one block for it, and four for the other to grow"
    assert not space.can_allocate((50,) * 20, 20)
    second = space.allocate(2, other, 20)
    beginning = space.begin(second, other)
    assert (beginning.source, beginning.there) == (-1, 16)
    assert list(beginning.blocks) == blocks_of(space, second) == [0, 1, 2, 3, 5]
    space.check({first: 1, second: 2})
    space.free(first)
    space.check({second: 2})
    assert space.known(STEM) == 16, "the other one has it still"


def test_what_others_fill_while_one_is_let_in_but_has_not_begun_is_shared_too() -> None:
    space = table()
    first, second = space.allocate(1, STEM, 20), space.allocate(2, STEM, 20)
    space.begin(first, STEM)
    space.extend(first, 11)
    assert blocks_of(space, second) == [5, 6, 7, 8, 9]
    assert space.begin(second, STEM).blocks == (0, 1, 7, 8, 9)
    space.check({first: 1, second: 2})
    space.extend(second, 20)
    space.check({first: 1, second: 2})


def test_two_who_filled_the_same_keep_it_each_and_it_is_known_once() -> None:
    space = table()
    first, second = (space.allocate(number, STEM, 20) for number in (1, 2))
    for slot in (first, second):
        assert space.begin(slot, STEM).there == 0
    for slot in (first, second):
        space.extend(slot, 20)
        space.check({first: 1, second: 2})
    assert space.allocate(3, (*STEM, 30, 31), 22) == 2
    assert blocks_of(space, 2)[:5] == blocks_of(space, first)
    space.free(first)
    space.free(second)
    space.check({2: 3})


def test_at_least_two_tokens_are_left_to_compute() -> None:
    space = table(32)
    begin(space, 1, tuple(range(100)))
    for length, found in ((8, 4), (9, 4), (10, 8), (5, 0), (6, 4), (1, 0)):
        assert space.known(tuple(range(length))) == found, length


def test_of_free_blocks_those_that_hold_nothing_go_first_then_ends_before_beginnings() -> None:
    space = table(blocks=12)
    begin(space, 1, STEM)
    begin(space, 2, (50,) * 20)
    space.free(0)
    assert space.known(STEM) == 16
    assert [space.grow(1)[0] for _ in range(2)] == [10, 11]
    assert space.known((*STEM, 30, 31)) == 20
    space.grow(1)
    assert space.known((*STEM, 30, 31)) == 16, "its end is gone"
    again = begin(space, 3, STEM[:10])
    assert blocks_of(space, again)[:2] == [0, 1], "what it needs is used, not taken"
    space.grow(1)
    assert space.known(STEM) == 8
    assert not space.can_grow()
    space.check({1: 2, again: 3})


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(0, 17))
@settings(deadline=None)
def test_what_was_of_use_the_longest_ago_goes_first(uses: list[int], needed: int) -> None:
    """One after the other begin like one of four stems and end; then somebody else needs so many blocks."""
    asked = [(*range(100 * stem, 100 * stem + 4 * SIZE), 7, 8) for stem in range(4)]
    space = table(blocks=4 * 4 + 1)
    for holder, stem in enumerate(uses):
        space.free(begin(space, holder, asked[stem]))
    last = sorted(set(uses), key=lambda stem: uses[::-1].index(stem), reverse=True)
    left = needed - (17 - 4 * len(last))
    if needed:
        begin(space, 99, tuple(range(900, 900 + needed * SIZE)), sent=False)
    for stem in last:
        gone = min(max(left, 0), 4)
        assert space.known(asked[stem]) == (4 - gone) * SIZE, f"stem {stem} of {last}"
        left -= gone


def test_without_reuse_nothing_is_known() -> None:
    space = table(reuse=False)
    begin(space, 1, STEM)
    space.free(0)
    assert space.known(STEM) == 0
    assert len(space._empty) == 16


def test_what_was_lost_is_not_known_again() -> None:
    space = table()
    begin(space, 1, STEM)
    space.forget()
    space.check({})
    assert space.known(STEM) == 0


def test_what_is_filed_behind_a_block_that_is_gone_is_not_found() -> None:
    """Also when the same tokens are filed anew: they are in another place of memory."""
    space = table(blocks=6)
    begin(space, 1, STEM)
    space._drop(space._lists[0].blocks.pop(0))  # as if it was the first of all to be free
    assert space.known(STEM) == 16
    space.grow(0)
    space.grow(0)
    assert space.known(STEM) == 0


@pytest.mark.parametrize(("streams", "sequences"), [(1, 4), (4, 16), (8, 32), (16, 32), (40, 40)])
def test_a_pool_is_what_was_planned_and_more_share_it(streams: int, sequences: int) -> None:
    assert pool_of(4096, streams) == Pool(128 * streams, 32)
    assert pool_of(33, streams) == Pool(2 * streams, 32)
    assert sequences_of(streams) == sequences
    assert (SHARING, MOST) == (4, 32)


def test_memory_is_counted_in_blocks_where_space_is() -> None:
    assert positions("onnxruntime", 33, 4) == 4 * 33
    assert positions("openvino", 33, 4) == (4 * 2 + 1) * 32


def test_more_are_at_work_only_where_every_stage_has_a_pool() -> None:
    assert at_work({"openvino"}, 4) == 16
    assert at_work({"openvino", "onnxruntime"}, 4) == at_work({"onnxruntime"}, 4) == 4


ACTS = st.lists(st.tuples(st.integers(0, 9), st.lists(st.integers(0, 1), min_size=1, max_size=14)), max_size=60)


@given(ACTS, st.integers(4, 12), st.booleans())
@settings(deadline=None)
def test_no_block_is_lost_or_two_sequences_own_whatever_happens(
    acts: list[tuple[int, list[int]]], blocks: int, reuse: bool
) -> None:
    """And what is found is there: whose block it is has written these tokens behind these."""
    space = BlockTable(4, Pool(blocks, 2), reuse=reuse)
    held: dict[int, int] = {}
    sent: dict[int, int] = {}
    lies: dict[int, tuple[int, ...]] = {}
    for number, (act, tokens) in enumerate(acts):
        prompt = tuple(tokens)
        slot = act % 4
        if act < 4:
            if slot in held:
                space.free(slot)
                del held[slot], sent[slot]
        elif act < 8:
            if space.can_allocate(prompt, len(prompt)):
                slot = space.allocate(number, prompt, len(prompt))
                held[slot] = number
                count = space.begin(slot, prompt).there
                assert count <= max(0, len(prompt) - 2)
                for place in range(count // 2):
                    assert lies[blocks_of(space, slot)[place]] == prompt[: 2 * place + 2]
                sent[slot] = count
        elif slot in held:
            own = space._lists[slot].prompt
            if sent[slot] < len(own):
                sent[slot] = min(len(own), sent[slot] + len(tokens))
                space.extend(slot, sent[slot])
                for place in range(sent[slot] // 2):
                    lies[blocks_of(space, slot)[place]] = own[: 2 * place + 2]
            elif space.can_grow():
                (more,) = space.grow(slot)
                lies.pop(more, None)
        space.check(held)
    for slot in list(held):
        space.free(slot)
    space.check({})
    assert len(space._empty) + len(space._kept) == blocks, "all of it is free again"


def test_a_pool_that_is_short_serves_more_and_computes_little_again() -> None:
    """The figures in the essay are of more requests (``pressure``)."""
    for shape, gain in (("mixed", 1.15), ("long answers", 1.25), ("long prompts", 1.0), ("short", 1.35)):
        shared, slots = (load(SHAPES[shape], 60, pooled=pooled, checked=True) for pooled in (True, False))
        assert slots.again == 0
        assert shared.per_s > gain * slots.per_s, shape
        assert shared.again < 0.12, shape


@pytest.mark.parametrize(
    ("backends", "sequences", "pool"),
    [
        (("openvino", "openvino"), 8, Pool(2 * 7, 32)),
        (("openvino", "onnxruntime"), 2, None),
        (("onnxruntime", "onnxruntime"), 2, None),
        (("openvino-gpu", "openvino"), 2, None),
    ],
    ids=str,
)
@pytest.mark.parametrize("serving", [False, True])
def test_the_poorer_stage_says_what_space_there_is(
    backends: tuple[str, str], sequences: int, pool: Pool | None, serving: bool
) -> None:
    made = fake_manifest(["a", "b"])
    stages = [msgspec.structs.replace(one, backend=each) for one, each in zip(made.stage, backends, strict=True)]
    made = msgspec.structs.replace(made, stage=stages)
    engine = engine_of(made, made.pipeline[0], Space(context=200, streams=2), 1, serving=serving)
    own = engine._roster.table
    assert own._slots == sequences
    assert (own._pool if isinstance(own, BlockTable) else None) == pool
    for number in range(10):
        engine.add(request(number))
    assert engine.running == min(sequences, 3 if pool else 2), "three have four blocks each to grow, of fourteen"
