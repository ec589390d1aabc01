"""How large chunks of prompts are while others decode: by the plan, and in the engine."""

from __future__ import annotations

import msgspec
import pytest

from ruvrun import frames
from ruvrun.manifest import Expected, Plan, Space
from ruvrun.manifest.blocks import BLOCK
from ruvrun.pipeline.chunks import LEAST, PATIENCE, chunks_beside
from ruvrun.pipeline.head import engine_of
from tests.runtime.engine_ring import Ring, request
from tests.runtime.fake_ring import fake_manifest
from tests.runtime.fakes import plain_tokens

SIZES = [16, 32, 64, 128, 256]


def stage(step: float, more: float, fixed: float, token: float) -> Expected:
    """A stage whose step of n rows takes ``step + more * (n - 1)``; a chunk takes so much, and so much a token."""
    return Expected(
        node="a",
        rows=[1, 4],
        ms=[step, step + 3 * more],
        chunks=SIZES,
        chunk_ms=[fixed + token * size for size in SIZES],
    )


def test_no_chunk_takes_more_than_it_may_on_the_slowest_stage() -> None:
    one = stage(40.0, 20.0, 4.0, 0.8)
    found = chunks_beside([one])
    assert found == (16, 32, 32, 64)
    for rows, size in enumerate(found, 1):
        assert one.chunk_ms[SIZES.index(size)] <= PATIENCE * (40.0 + 20.0 * (rows - 1))
    slow = stage(50.0, 0.0, 10.0, 2.0)
    assert chunks_beside([one, slow]) == (LEAST, LEAST, 16, 16), "one has the steps, and the other one the chunks"


def test_a_chunk_in_the_step_of_those_who_decode_counts_only_by_what_it_adds() -> None:
    """What a step takes beside its tokens is taken anyway, so there is room for more of them."""
    one = stage(40.0, 20.0, 30.0, 0.5)
    alone, ragged = chunks_beside([one]), chunks_beside([one], ragged=True)
    assert alone == (LEAST, LEAST, 32, 32)
    assert ragged == (32, 64, 64, 64)
    for rows, size in enumerate(ragged, 1):
        assert 0.5 * size <= PATIENCE * (40.0 + 20.0 * (rows - 1)) < 0.5 * 2 * size
    slow = stage(50.0, 0.0, 10.0, 1.0)
    assert chunks_beside([one, slow], ragged=True) == (16, 32, 32, 32), "one has the steps"
    single = Expected(node="a", rows=[1], ms=[40.0], chunks=[16], chunk_ms=[20.0])
    assert chunks_beside([single], ragged=True) == (16,), "of one size it is not known what is beside the tokens"


def test_a_chunk_is_never_so_small_that_it_is_mostly_waste() -> None:
    assert chunks_beside([stage(1.0, 1.0, 100.0, 1.0)]) == (LEAST,) * 4


@pytest.mark.parametrize("silent", [None, Expected(node="b"), Expected(node="b", rows=[1], ms=[1.0])])
def test_where_the_plan_says_nothing_chunks_stay_as_they_are(silent: Expected | None) -> None:
    assert chunks_beside([stage(40.0, 20.0, 4.0, 0.8), silent]) == ()


@pytest.mark.parametrize(("decoding", "expected"), [(0, 16), (1, 3), (2, 3), (3, 5), (4, 5), (5, 9), (8, 9)])
def test_chunks_are_as_large_as_those_who_decode_allow(decoding: int, expected: int) -> None:
    ring = Ring(2, decoding + 1, chunk=16, context=200, beside=(3, 5, 9))
    for number in range(decoding):
        ring.add(request(number, (number, 1), max_tokens=150))
    while len(ring.decoding) < decoding:
        ring.turn()
    late = request(50, tuple(range(61)), max_tokens=3)
    ring.add(late)
    while 50 not in ring.finished:
        ring.turn()
    steps = [message for message in ring.sent if isinstance(message, frames.Step)]
    sizes = [seq.count for step in steps for seq in step.seqs if seq.id == 50 and seq.position < 61]
    assert sum(sizes) == 61
    assert set(sizes[:-1]) == {expected}
    assert 2 <= sizes[-1] <= expected + 1
    assert ring.answers[50] == plain_tokens(late, 200)


@pytest.mark.parametrize(
    ("backends", "serving", "joined"),
    [
        (("openvino", "openvino"), True, True),
        (("openvino", "onnxruntime"), True, False),
        (("onnxruntime",), True, False),
        (("openvino",), False, False),
    ],
)
def test_chunks_go_with_those_who_decode_where_every_stage_makes_one_call_of_it(
    backends: tuple[str, ...], serving: bool, joined: bool
) -> None:
    made = fake_manifest(["a", "b"][: len(backends)])
    stages = [msgspec.structs.replace(one, backend=name) for one, name in zip(made.stage, backends, strict=True)]
    made = msgspec.structs.replace(made, stage=stages)
    engine = engine_of(made, made.pipeline[0], Space(context=200, streams=2), 1, serving=serving)
    engine.add(request(0, (1, 2), max_tokens=20))
    _, first = engine.step(), engine.step()
    assert first is not None
    engine.receive(frames.Sampled(1, first[0].step, ((0, (5,)),)))
    engine.add(request(1, tuple(range(61))))
    steps = [sent[0] for sent in iter(engine.step, None) if isinstance(sent[0], frames.Step)]
    assert next(len(step.seqs) for step in steps) == 1 + joined


@pytest.mark.parametrize(
    ("backend", "serving", "expected"),
    [("onnxruntime", True, 16), ("openvino-gpu", True, 61), ("openvino-npu", True, 61), ("onnxruntime", False, 61)],
)
def test_company_divides_a_prompt_only_where_that_changes_nothing(backend: str, serving: bool, expected: int) -> None:
    """And only where people are served: what is measured is decoding by all, once all prompts are through."""
    made = fake_manifest(["a"])
    plan = Plan(expected=[stage(40.0, 20.0, 4.0, 0.8)])
    made = msgspec.structs.replace(made, stage=[msgspec.structs.replace(made.stage[0], backend=backend)], plan=plan)
    engine = engine_of(made, made.pipeline[0], Space(context=200, streams=2), 1, serving=serving)
    engine.add(request(0, (1, 2)))
    _, first = engine.step(), engine.step()
    assert first is not None
    engine.receive(frames.Sampled(1, first[0].step, ((0, (5,)),)))
    engine.add(request(1, tuple(range(61))))
    steps = [sent[0] for sent in iter(engine.step, None) if isinstance(sent[0], frames.Step)]
    assert next(seq.count for step in steps for seq in step.seqs if seq.id == 1) == expected


@pytest.mark.parametrize("reuse", [False, True])
def test_whoever_measures_has_prompts_computed_again_or_not(reuse: bool) -> None:
    made = fake_manifest(["a"])
    engine = engine_of(made, made.pipeline[0], Space(context=200, streams=2), 1, serving=False, reuse=reuse)
    prompt = tuple(range(61))
    engine.add(request(0, prompt))
    list(iter(engine.step, None))
    assert engine.known(prompt) == (BLOCK if reuse else 0), "full blocks, and never all but one token"
