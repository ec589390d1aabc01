"""A pipeline in one process: the same tokens in any number of stages and any company, and bundles on disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun import executors, manifest
from ruvrun.bundle import File, StageSpec, file_sha256
from ruvrun.engine import Request
from ruvrun.errors import InputError, IntegrityError, RuvError
from ruvrun.executors import Array
from ruvrun.pipeline.local import LocalPipeline, open_local
from ruvrun.pipeline.worker import Worker
from tests import strategies
from tests.runtime.fakes import LAYERS, VOCAB, FakeDecoder, fake_spec, fake_workers, greedy, plain_tokens

CONTEXT = 24


@given(st.data(), st.integers(1, LAYERS), st.integers(1, 5), st.integers(2, 9), st.integers(1, 7))
@settings(deadline=None, max_examples=60)
def test_same_tokens_in_any_number_of_stages_and_any_company(
    data: st.DataObject, stages: int, streams: int, chunk: int, many: int
) -> None:
    requests = [data.draw(strategies.requests(number, context=CONTEXT, vocab=VOCAB)) for number in range(many)]
    pipeline = LocalPipeline(fake_workers(stages, slots=streams, context=CONTEXT), CONTEXT, streams, chunk)
    expected = {request.id: plain_tokens(request, CONTEXT) for request in requests}
    assert pipeline.generate(requests) == expected
    assert all(not worker._open for worker in pipeline.workers)
    assert pipeline.generate(requests[::-1]) == expected, "a second call starts from nothing"


def test_a_request_that_cannot_be_served_runs_nothing_and_leaves_nothing() -> None:
    pipeline = LocalPipeline(fake_workers(2, slots=2, context=8), 8, 2)
    good = Request(0, (1, 2), 3, greedy(), frozenset())
    with pytest.raises(InputError):
        pipeline.generate([good, Request(1, (1,) * 8, 3, greedy(), frozenset())])
    assert pipeline.workers[0].meter.steps == 0
    assert pipeline.generate([good]) == {0: plain_tokens(good, 8)}
    assert pipeline.generate([]) == {}


class Doubler:
    """A graph stage that reuses its output array, as an executor may."""

    def __init__(self, spec: StageSpec) -> None:
        self.names = spec.inputs[0].name, spec.outputs[0].name
        self.out = np.zeros(2, np.float32)

    def run(self, tensors: Mapping[str, Array]) -> dict[str, Array]:
        np.multiply(tensors[self.names[0]], 2, out=self.out)
        return {self.names[1]: self.out}


def doubling(index: int, last: bool) -> StageSpec:
    def tensor(number: int) -> manifest.Tensor:
        return manifest.Tensor(name=f"x{number}", dtype="float32", shape=[2])

    return StageSpec(
        kind="graph",
        backend="fake",
        target="fake",
        model="stage.bin",
        first=index == 0,
        last=last,
        inputs=[tensor(index)],
        outputs=[tensor(index + 1)],
        forward=[f"x{index + 1}"],
        files=[],
    )


def test_a_graph_runs_through_all_stages_and_its_results_are_the_callers() -> None:
    specs = [doubling(index, index == 2) for index in range(3)]
    pipeline = LocalPipeline([Worker(Doubler(spec), spec) for spec in specs])
    first = pipeline.run({"x0": np.array([1, 2], np.float32)})
    second = pipeline.run({"x0": np.array([5, 5], np.float32)})
    assert first["x3"].tolist() == [8, 16]
    assert second["x3"].tolist() == [40, 40]


def write_build(directory: Path, specs: list[StageSpec]) -> Path:
    """A build on disk: one bundle per spec, on nodes n0, n1, ..."""
    stages, placed, nodes = [], [], []
    for index, spec in enumerate(specs):
        bundle = directory / "bundles" / f"n{index}"
        (bundle / "weights").mkdir(parents=True)
        (bundle / "weights" / "w.bin").write_bytes(bytes([index] * 10))
        sha = file_sha256(bundle / "weights" / "w.bin")
        listed = [File(path="weights/w.bin", sha256=sha, bytes=10)]
        spec = msgspec.structs.replace(spec, model="weights/w.bin", files=listed)
        (bundle / "bundle.toml").write_bytes(manifest.dump_toml(spec))
        stages.append(
            manifest.Stage(
                index=index,
                sha256=file_sha256(bundle / "bundle.toml"),
                backend="fake",
                target="fake",
                inputs=spec.inputs,
                outputs=spec.outputs,
                forward=spec.forward,
                weight_bytes=10,
                graph_nodes=1,
            )
        )
        placed.append(manifest.Placed(stage=index, node=f"n{index}"))
        nodes.append(manifest.Node(name=f"n{index}", public_key="k" * 40, target="fake"))
    kind: Literal["decoder", "graph"] = "decoder" if specs[0].kind == "decoder" else "graph"
    program = manifest.Program(name="fake", kind=kind, source="f", source_sha256="0", vocab=VOCAB, context=CONTEXT)
    pipelines = [manifest.Pipeline(stages=placed)]
    whole = manifest.Manifest(
        id=manifest.identify(program, stages, pipelines),
        program=program,
        stage=stages,
        node=nodes,
        pipeline=pipelines,
        head=manifest.Head(node="n0"),
        space=manifest.Space(context=CONTEXT, streams=3),
    )
    for place in (directory, *(directory / "bundles").iterdir()):
        (place / "manifest.toml").write_bytes(manifest.dump_manifest(whole))
    return directory / "manifest.toml"


class FakeBackend:
    """Stands for a module of ``ruvrun.executors``."""

    def __init__(self) -> None:
        self.loaded: list[tuple[str, int]] = []

    def load_decoder(self, directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> FakeDecoder:
        self.loaded.append((directory.name, threads))
        first = 0 if spec.first else int(spec.inputs[0].name.rpartition(".")[2])
        last = LAYERS if spec.last else int(spec.outputs[0].name.rpartition(".")[2])
        return FakeDecoder(first, last, slots=slots, context=context)

    def load_graph(self, directory: Path, spec: StageSpec, *, threads: int) -> Doubler:
        self.loaded.append((directory.name, threads))
        return Doubler(spec)


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> FakeBackend:
    fake = FakeBackend()
    monkeypatch.setattr(executors, "_module", lambda _name: fake)
    return fake


def test_open_local_loads_every_stage_with_the_planned_space(tmp_path: Path, backend: FakeBackend) -> None:
    path = write_build(tmp_path, [fake_spec(0, 1), fake_spec(1, 3), fake_spec(3, 4)])
    pipeline = open_local(path, threads=2)
    assert backend.loaded == [("n0", 2), ("n1", 2), ("n2", 2)]
    assert (pipeline.context, pipeline.streams) == (CONTEXT, 3)
    requests = [Request(number, (number, 4, 5), 6, greedy(), frozenset()) for number in range(5)]
    assert pipeline.generate(requests) == {request.id: plain_tokens(request, CONTEXT) for request in requests}
    smaller = open_local(path, context=6, streams=1)
    assert smaller.generate(requests) == {request.id: plain_tokens(request, 6) for request in requests}


def test_open_local_runs_a_graph(tmp_path: Path, backend: FakeBackend) -> None:
    path = write_build(tmp_path, [doubling(0, False), doubling(1, True)])
    assert open_local(path).run({"x0": np.array([1, 3], np.float32)})["x2"].tolist() == [4, 12]


@pytest.mark.parametrize("damage", ["flip", "remove", "no bundle"])
def test_open_local_loads_nothing_that_it_has_not_checked(tmp_path: Path, backend: FakeBackend, damage: str) -> None:
    path = write_build(tmp_path, [fake_spec(0, 1), fake_spec(1, 4)])
    bundle = tmp_path / "bundles" / "n1"
    kind: type[RuvError] = IntegrityError
    if damage == "flip":
        (bundle / "weights" / "w.bin").write_bytes(bytes([0] * 9 + [1]))
    elif damage == "remove":
        (bundle / "weights" / "w.bin").unlink()
    else:
        bundle.rename(tmp_path / "elsewhere")
        kind = InputError
    with pytest.raises(kind):
        open_local(path)
    assert backend.loaded == []
