"""Law 1 whatever comes when: sequences arrive, are cancelled and put back, in any number of stages, on every back end.

The real engine, workers and executors, without links; what must hold of the engine is seen after every step.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvrun import frames
from ruvrun.bundle import StageSpec
from ruvrun.engine import Engine, Outgoing, blocks
from ruvrun.executors import PooledExecutor, load_decoder
from ruvrun.frames import Sampled
from ruvrun.manifest.blocks import BLOCK, Pool
from ruvrun.pipeline import LocalPipeline, Request, Sampling, Worker
from tests.decoders import GREEDY, ask, tiny_program
from tests.runtime.consistency import check

CONTEXT, STREAMS = 96, 2
CUTS = ((), (3,), (2, 4))
IDS = [int(token) for token in np.random.default_rng(11).integers(3, 300, 400)]
SAMPLINGS = [
    GREEDY,
    Sampling(1.1, 0.95, 2**40, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3, logprobs=1),
]


class Model:
    """A decoder in one, two and three stages on one back end, and what it answers to each request alone."""

    def __init__(self, folder: Path, backend: str) -> None:
        program = tiny_program(folder, layers=2, ffn=128)
        store = WeightStore(folder / "store")
        self.epochs = itertools.count(1000)
        self._alone: dict[Request, list[int]] = {}
        self.pipelines: list[LocalPipeline] = []
        for cuts in CUTS:
            workers = []
            for number, piece in enumerate(pieces(program, program_units(program), cuts)):
                path = folder / f"{len(cuts)}.{number}"
                spec = write_stage(program, piece, path, store, backend=backend, target="host")
                if backend == "reference":
                    spec = exact(spec)
                workers.append(Worker(load_decoder(path, spec, context=CONTEXT, slots=STREAMS, threads=1), spec))
            self.pipelines.append(LocalPipeline(workers, CONTEXT, STREAMS))
        self.pooled = isinstance(workers[0]._executor, PooledExecutor)

    def alone(self, request: Request) -> list[int]:
        key = msgspec.structs.replace(request, id=0)
        if key not in self._alone:
            self._alone[key] = self._run(self.engine(1, 256, False, 3), key)
        return self._alone[key]

    def engine(
        self,
        stages: int,
        chunk: int,
        reuse: bool,
        blocks: int,
        beside: tuple[int, ...] = (),
        ragged: bool = False,
    ) -> Engine:
        """With a pool of so many blocks, where there are any."""
        return Engine(
            stages=stages,
            context=CONTEXT,
            streams=8 if self.pooled else STREAMS,
            chunk=chunk,
            beside=beside,
            ragged=ragged,
            epoch=next(self.epochs),
            reuse=BLOCK if reuse else 0,
            pool=Pool(blocks, BLOCK) if self.pooled else None,
        )

    def _run(self, engine: Engine, request: Request) -> list[int]:
        world = World(self.pipelines[0], engine)
        world.add(request)
        while world.turn():
            pass
        return world.answers[request.id]


def exact(spec: StageSpec) -> StageSpec:
    """What the reference gives from stage to stage is of 64 bits."""
    inputs = [one if one.dtype == "int64" else msgspec.structs.replace(one, dtype="float64") for one in spec.inputs]
    return msgspec.structs.replace(spec, inputs=inputs)


class World:
    """An engine and its pipeline, one result at a time."""

    def __init__(self, pipeline: LocalPipeline, engine: Engine) -> None:
        self.pipeline, self.engine = pipeline, engine
        self.answers: dict[int, list[int]] = {}
        self.put_backs = self.cancelled = 0
        self._ring: deque[Sampled] = deque()

    def add(self, request: Request) -> None:
        self.engine.add(request)
        self.answers[request.id] = []

    def cancel(self, number: int) -> None:
        self.cancelled += number in self.engine._roster
        self.engine.cancel(number)
        check(self.engine)

    def turn(self) -> bool:
        """Send what may go, and take one result; False once nothing moves."""
        while outgoing := self.engine.step():
            check(self.engine)
            if result := self.pipeline._around(*outgoing):
                assert isinstance(result[0], Sampled)
                self._ring.append(result[0])
        if self._ring:
            for token in self.engine.receive(self._ring.popleft()):
                self.answers[token.id].append(token.token)
            check(self.engine)
            return True
        return not self.engine.idle

    def put_back(self) -> None:
        """The youngest, as if another one wanted its space; where space is in slots it begins again at once."""
        roster = self.engine._roster
        if roster.running:
            youngest = roster.running[next(reversed(roster.running))]
            self.engine._end(youngest)
            roster.line.rejoin(youngest.afresh())
            roster.admit()
            self.put_backs += 1


@pytest.fixture(scope="module", params=["reference", "onnxruntime", "openvino"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(autouse=True, scope="module")
def narrow() -> Iterator[None]:
    """With less of a margin, so that space runs out more often."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MARGIN", 1)
        yield


@st.composite
def prompts(draw: st.DrawFn) -> Sequence[int]:
    """Some begin alike, and part before, at or behind the end of a block."""
    stem = IDS[: draw(st.sampled_from([0, 0, 31, 32, 40]))]
    own = draw(st.integers(0, 300))
    return [*stem, *IDS[own : own + draw(st.integers(1, 24))]]


@pytest.mark.parametrize("tight", [False, True], ids=["room for all", "put back"])
@pytest.mark.parametrize("reuse", [False, True], ids=["each for itself", "reuse"])
@pytest.mark.parametrize("stages", range(1, len(CUTS) + 1))
@given(st.data())
@settings(max_examples=3, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_same_tokens_whatever_comes_when(
    model: Model, stages: int, reuse: bool, tight: bool, data: st.DataObject
) -> None:
    """In each of these at least one is cancelled, and where space is tight, put back."""
    chunk, beside = data.draw(st.integers(2, 50)), tuple(data.draw(st.lists(st.integers(2, 50), max_size=2)))
    pool, ragged = data.draw(st.integers(3, 6)) if tight else 6, data.draw(st.booleans())
    world = World(model.pipelines[stages - 1], model.engine(stages, chunk, reuse, pool, beside, ragged))
    asked, gone = [], set()
    many = data.draw(st.integers(2, 6))
    sure = data.draw(st.integers(1, many - 1))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "MARGIN", 1 if tight else 3)  # of three nobody ever needs more
        for number in range(many):
            one = ask(number, data.draw(prompts()), 30 if number == sure else data.draw(st.integers(1, 30)))
            asked.append(msgspec.structs.replace(one, sampling=data.draw(st.sampled_from(SAMPLINGS))))
            world.add(asked[-1])
            for _ in range(data.draw(st.integers(0, 12))):
                world.turn()
            if tight and (number == sure or data.draw(st.booleans())):
                world.put_back()
            if number == sure or data.draw(st.integers(0, 5)) == 0:
                gone.add(other := number if number == sure else data.draw(st.integers(0, number)))
                world.cancel(other)
        while world.turn():
            pass
    assert world.cancelled
    assert (world.put_backs + world.engine.put_backs > 0) == tight
    for one in asked:
        expected, answer = model.alone(one), world.answers[one.id]
        assert answer == (expected[: len(answer)] if one.id in gone else expected)


def test_the_answers_are_worth_comparing(model: Model) -> None:
    answers = [model.alone(ask(0, IDS[at : at + 9], 20)) for at in (0, 50, 100)]
    assert len({tuple(answer) for answer in answers}) == 3
    assert all(len(set(answer)) > 5 for answer in answers)


@pytest.mark.parametrize("stages", [1, 2, 3])
@pytest.mark.parametrize("reuse", [False, True])
def test_who_is_put_back_again_and_again_goes_on_with_the_same_tokens(model: Model, stages: int, reuse: bool) -> None:
    """In the middle of a prompt, of its answer, and while the answer is computed again."""
    world = World(model.pipelines[stages - 1], model.engine(stages, 16, reuse, 6))
    asked = [
        msgspec.structs.replace(ask(number, IDS[10 * number : 10 * number + 37], 40), sampling=sampling)
        for number, sampling in enumerate([*SAMPLINGS, *SAMPLINGS])
    ]
    for one in asked:
        world.add(one)
    for turn in itertools.count(1):
        if not world.turn():
            break
        if turn in (2, 5, 20, 31, 44, 90):
            world.put_back()
    assert world.put_backs == 6
    assert world.answers == {one.id: model.alone(one) for one in asked}


@pytest.mark.parametrize("beside", [2, 7, 40])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_chunks_in_the_steps_of_those_who_decode_change_no_token(model: Model, stages: int, beside: int) -> None:
    world = World(model.pipelines[stages - 1], model.engine(stages, 64, False, 6, (beside,), ragged=True))
    asked = [ask(number, IDS[10 * number : 10 * number + 37], 20) for number in range(3)]
    sent: list[frames.Step] = []
    step = world.engine.step

    def noted() -> Outgoing | None:
        if (outgoing := step()) and isinstance(outgoing[0], frames.Step):
            sent.append(outgoing[0])
        return outgoing

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(world.engine, "step", noted)
        for one in asked:
            world.add(one)
            for _ in range(4 * stages):
                world.turn()
        while world.turn():
            pass
    assert any(len({min(seq.count, 2) for seq in each.seqs}) == 2 for each in sent)
    assert world.answers == {one.id: model.alone(one) for one in asked}


def test_sequences_of_a_quarter_of_the_context_share_what_two_whole_ones_were_planned_for(model: Model) -> None:
    if not model.pooled:
        pytest.skip("space is in slots")
    (pipeline, *_) = model.pipelines
    (executor,) = [worker._executor for worker in pipeline.workers]
    assert isinstance(executor, PooledExecutor)
    assert (executor.pool, executor.sequences) == (Pool(2 * 3, BLOCK), 8)
    asked = [ask(number, IDS[number : number + 10], 12) for number in range(6)]
    world = World(pipeline, model.engine(1, 64, True, 6))
    for one in asked:
        world.add(one)
    most = 0
    while world.turn():
        most = max(most, world.engine.running)
    assert most > STREAMS
    assert world.answers == {one.id: model.alone(one) for one in asked}
    pipeline._epoch, _ = next(model.epochs), next(model.epochs)
    assert pipeline.generate(asked) == world.answers, "as every local pipeline does"


def test_a_pool_takes_the_memory_that_was_planned(model: Model) -> None:
    """But for one block, of the sequence that keeps a lone row company."""
    for pipeline in model.pipelines if model.pooled else ():
        for worker in pipeline.workers:
            executor, kv = worker._executor, worker.spec.kv
            if kv is not None and kv.layers:
                size = sum(array.nbytes for array in executor._kv.values())  # type: ignore[union-attr] # paged
                assert size == kv.bytes_per_token * (STREAMS * CONTEXT + BLOCK)
