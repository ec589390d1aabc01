"""One pipeline over unlike back ends: one table of slots and blocks serves both, and company changes nothing.

A mixed pipeline has no uncut model to be equal to. What it must be is equal to itself: a sequence's tokens are the same
alone and in company, whatever the chunks, whoever joins and leaves, and after a stage was loaded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvrun.executors import DecoderExecutor, Span, load_decoder
from ruvrun.pipeline import LocalPipeline, Worker
from tests.decoders import Stage, ask, tiny_program

ONNX, OPEN = "onnxruntime", "openvino"
ORDERS = ((ONNX, OPEN), (OPEN, ONNX), (ONNX, OPEN, ONNX))
CONTEXT, SLOTS, ANSWER = 96, 4, 24
IDS = np.random.default_rng(7).integers(3, 300, (SLOTS, CONTEXT))
# Lengths of prompts: a block of 32 and its neighbours, one that goes in many chunks, one of a single token.
PROMPTS = [IDS[0, :32], IDS[1, :33], IDS[2, :60], IDS[3, :1], IDS[0, 5:12], IDS[1, 3:34]]


@pytest.fixture(scope="module", params=ORDERS, ids=lambda order: " + ".join(order))
def stages(request, tmp_path_factory) -> list[Stage]:
    folder: Path = tmp_path_factory.mktemp("mixed")
    program = tiny_program(folder, "int4", layers=2)
    cuts = (3,) if len(request.param) == 2 else (2, 4)
    store, made = WeightStore(folder / "store"), []
    for piece, backend in zip(pieces(program, program_units(program), cuts), request.param, strict=True):
        path = folder / f"{len(made)}"
        made.append((path, write_stage(program, piece, path, store, backend=backend, target="host")))
    return made


def load(stage: Stage, slots: int = SLOTS) -> DecoderExecutor:
    return load_decoder(*stage, context=CONTEXT, slots=slots, threads=1)


@pytest.fixture(scope="module")
def executors(stages) -> list[DecoderExecutor]:
    return [load(stage) for stage in stages]


def pipeline(stages: Sequence[Stage], executors: Sequence[DecoderExecutor], chunk: int = 256) -> LocalPipeline:
    workers = [Worker(executor, spec) for executor, (_, spec) in zip(executors, stages, strict=True)]
    return LocalPipeline(workers, CONTEXT, executors[0].slots, chunk)


@pytest.fixture(scope="module")
def alone(stages) -> dict[int, list[int]]:
    """The answer to every prompt in a pipeline that has room for one, each by itself."""
    one = pipeline(stages, [load(stage, slots=1) for stage in stages])
    found = {number: one.generate([ask(number, ids, ANSWER)])[number] for number, ids in enumerate(PROMPTS)}
    assert len({tuple(tokens) for tokens in found.values()}) == len(PROMPTS)
    return found


@pytest.mark.parametrize("chunk", [256, 16, 7])
def test_company_and_chunks_change_no_token(stages, executors, alone, chunk) -> None:
    """Six sequences in four slots: two join when others have left, into slots and blocks that those used."""
    requests = [ask(number, ids, ANSWER) for number, ids in enumerate(PROMPTS)]
    assert pipeline(stages, executors, chunk).generate(requests) == alone


def test_sequences_leave_at_different_times(stages, executors, alone) -> None:
    lengths = [3, ANSWER, 1, 9, ANSWER, 17]
    requests = [ask(number, ids, lengths[number]) for number, ids in enumerate(PROMPTS)]
    found = pipeline(stages, executors).generate(requests)
    assert found == {number: alone[number][: lengths[number]] for number in range(len(PROMPTS))}


def test_a_stage_that_is_loaded_again_gives_the_same_tokens(stages, executors, alone) -> None:
    """Whichever of them it is; what others hold of sequences before is of no use and does no harm."""
    requests = [ask(number, ids, ANSWER) for number, ids in enumerate(PROMPTS[:3])]
    for number, stage in enumerate(stages):
        renewed = list(executors)
        renewed[number] = load(stage)
        found = pipeline(stages, renewed).generate(requests)
        assert found == {request.id: alone[request.id] for request in requests}, number


def step(executors: Sequence[DecoderExecutor], *spans: Span, ids: np.ndarray = IDS) -> np.ndarray:
    tokens = np.concatenate([ids[span.slot, span.position : span.position + span.count] for span in spans])
    tensors = {"input_ids": tokens}
    for executor in executors:
        tensors = {name: array.copy() for name, array in executor.step(spans, tensors).items()}
    return tensors["logits"]


def test_a_rewind_is_a_smaller_position_on_every_stage(executors) -> None:
    """Over the end of a block, with another sequence beside; what was written behind it is never seen again."""
    first = [step(executors, Span(0, 0, 30, 1)), *(step(executors, Span(0, at, 1, 1)) for at in range(30, 40))]
    step(executors, Span(2, 0, 50, 0))
    others = IDS[:, ::-1]
    for back in (38, 33, 31):  # other tokens from there on, then the right ones again
        step(executors, Span(0, back, 1, 1), Span(2, 50, 1, 1), ids=others)
        step(executors, Span(0, back + 1, 5, 1), ids=others)
        again = [step(executors, Span(0, at, 1, 1), Span(2, 51, 1, 1))[0] for at in range(back, 40)]
        assert np.array_equal(again, [row[0] for row in first[back - 29 :]]), back
    # From a chunk's own beginning on the positions are computed as they were: in one chunk.
    assert np.array_equal(step(executors, Span(0, 0, 30, 1)), first[0])


def test_a_prompt_beside_others_that_decode(executors) -> None:
    """One step of a chunk, a last chunk and single tokens: each row is what it is alone."""
    step(executors, Span(0, 0, 31, 0))
    step(executors, Span(1, 0, 64, 0))
    wanted = [
        step(executors, Span(0, 31, 1, 1)),
        step(executors, Span(1, 64, 1, 1)),
        step(executors, Span(2, 0, 40, 1)),
        step(executors, Span(3, 0, 2, 1)),
    ]
    found = step(executors, Span(0, 31, 1, 1), Span(2, 0, 40, 1), Span(1, 64, 1, 1), Span(3, 0, 2, 1))
    assert np.array_equal(found, np.concatenate([wanted[0], wanted[2], wanted[1], wanted[3]]))
