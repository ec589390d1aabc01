"""Positions that are copied instead of computed, and positions that are computed again: the same tokens, on every back
end that can copy.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import pytest

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.program import Program
from ruvrun.backends import COPYING
from ruvrun.engine import Engine
from ruvrun.executors import CopyingExecutor, load_decoder
from ruvrun.frames import Sampled
from ruvrun.manifest.blocks import BLOCK
from ruvrun.pipeline import LocalPipeline, Request, Worker
from tests.decoders import Stage, ask, tiny_program

CONTEXT, STREAMS = 160, 3
BACKENDS = ["onnxruntime", "openvino"]  # the reference copies as exported decoders do


class Copies:
    """Counts what an executor is told to copy."""

    def __init__(self, inner: CopyingExecutor) -> None:
        self.slots, self.context, self.step = inner.slots, inner.context, inner.step
        self.inner = inner
        self.made: list[tuple[int, int, int]] = []

    def copy(self, source: int, target: int, count: int) -> None:
        self.made.append((source, target, count))
        self.inner.copy(source, target, count)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("prefix"), layers=2, ffn=128)


@pytest.fixture(scope="module", params=BACKENDS)
def stages(request: pytest.FixtureRequest, program: Program, tmp_path_factory: pytest.TempPathFactory) -> list[Stage]:
    folder: Path = tmp_path_factory.mktemp(request.param)
    store, made = WeightStore(folder / "store"), []
    for number, piece in enumerate(pieces(program, program_units(program), (3,))):
        path = folder / str(number)
        made.append((path, write_stage(program, piece, path, store, backend=request.param, target="host")))
    return made


def opened(stages: list[Stage], reuse: int) -> tuple[LocalPipeline, list[Copies]]:
    loaded = [load_decoder(path, spec, context=CONTEXT, slots=STREAMS, threads=1) for path, spec in stages]
    assert all(
        isinstance(each, CopyingExecutor) and spec.backend in COPYING
        for each, (_, spec) in zip(loaded, stages, strict=True)
    )
    copies = [Copies(each) for each in loaded]  # type: ignore[arg-type] # they are
    workers = [Worker(each, spec) for each, (_, spec) in zip(copies, stages, strict=True)]
    return LocalPipeline(workers, CONTEXT, STREAMS, chunk=40, reuse=reuse), copies


def requests() -> list[Request]:
    """Prompts of which the later ones begin like an earlier one, and part at, before or behind the end of a block."""
    random = np.random.default_rng(5)
    stem = random.integers(3, 300, 100).tolist()
    ends = [random.integers(3, 300, 12).tolist() for _ in range(6)]
    prompts = [stem, stem[:70] + ends[0], stem[:64] + ends[1], stem, stem[:63] + ends[2], stem[:20] + ends[3]]
    return [ask(number, prompt, 20) for number, prompt in enumerate(prompts)]


def test_tokens_are_those_of_prompts_that_are_computed_whole(stages: list[Stage]) -> None:
    plain, none = opened(stages, 0)
    alone = {request.id: plain.generate([request])[request.id] for request in requests()}
    assert len({tuple(answer) for answer in alone.values()}) == 5, "two of the prompts are the same"
    assert not any(each.made for each in none)
    pipeline, copies = opened(stages, BLOCK)
    assert pipeline.generate(requests()) == alone
    assert [each.made for each in copies] == [copies[0].made] * len(copies), "on every stage alike"
    assert sorted(count for _, _, count in copies[0].made) == [32, 64, 64, 96]
    assert any(source != target for source, target, _ in copies[0].made)


@pytest.mark.parametrize("laps", [3, 17])
@pytest.mark.parametrize("reuse", [0, BLOCK])
def test_answers_that_lost_what_was_computed_go_on_with_the_same_tokens(
    stages: list[Stage], laps: int, reuse: int
) -> None:
    """All of them at once, after so many results; twice, the second time while they are computed again."""
    pipeline, _ = opened(stages, reuse)
    asked = requests()[:3]
    alone = {request.id: pipeline.generate([request])[request.id] for request in asked}
    engine = Engine(stages=2, context=CONTEXT, streams=STREAMS, chunk=40, epoch=100, reuse=reuse)
    found: dict[int, list[int]] = {request.id: [] for request in asked}
    for request in asked:
        engine.add(request)
    ring: deque[Sampled] = deque()
    results = 0
    while not engine.idle:
        while outgoing := engine.step():
            if result := pipeline._around(*outgoing):
                assert isinstance(result[0], Sampled)
                ring.append(result[0])
        for token in engine.receive(ring.popleft()) if ring else ():
            found[token.id].append(token.token)
        results += 1
        if results in (laps, laps + 5):
            ring.clear()
            for sequence in engine.abandon():
                engine.resume(sequence)
    assert found == alone
