"""The compiled graph beside a bundle: taken where all is as it was, else ignored with one line, and made anew."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np
import openvino as ov
import pytest
from onnx import helper

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvrun.bundle import NODE
from ruvrun.executors.openvino.compiled import BLOB, MADE, Made, compile_graph
from ruvrun.executors.openvino.cpu import load_graph
from ruvrun.executors.openvino.graph import OpenVinoGraph
from ruvrun.pipeline.loading import load_worker
from ruvrun.toml import dump_toml, read_toml
from tests.decoders import Stage
from tests.graphs import make_model, program_of, tensor, weight

X = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture
def stage(tmp_path) -> Stage:
    random = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], "product"), helper.make_node("Relu", ["m"], ["y"], "relu")]
    weights = [weight("w", random.standard_normal((4, 4)))]
    program = program_of(make_model(nodes, [tensor("x", [2, 4])], [tensor("y", [2, 4])], weights))
    (piece,) = pieces(program, program_units(program), ())
    path = tmp_path / "stage"
    spec = write_stage(program, piece, path, WeightStore(tmp_path / "w"), backend="openvino", target="intel-cpu")
    (path / NODE).mkdir()
    return path, spec


def opened(stage: Stage) -> OpenVinoGraph:
    return load_graph(*stage, threads=1)


def never() -> None:
    raise AssertionError("the graph was read")


def test_the_second_start_reads_what_the_first_one_left(stage) -> None:
    path, _ = stage
    first = opened(stage)
    assert first.notes == ()
    left = (path / BLOB).read_bytes()
    second = opened(stage)
    assert second.notes == ()
    assert np.array_equal(second.run({"x": X})["y"], first.run({"x": X})["y"])
    assert (path / BLOB).read_bytes() == left


def test_nothing_is_read_or_compiled_where_there_is_one(stage) -> None:
    path, spec = stage
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    core = ov.Core()
    compile_graph(core, path, spec, "CPU", settings, lambda: core.read_model(path / spec.model))
    taken = compile_graph(core, path, spec, "CPU", settings, never)
    assert taken.ignored == ""
    assert taken.constants is not None


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"openvino": "2025.1"}, "made with OpenVINO 2025.1, this is 20"),
        ({"cpu": "Another CPU"}, "made on Another CPU, this is "),
        ({"device": "GPU", "driver": "25.1"}, "made for GPU, this is CPU; made with driver 25.1, this is "),
        ({"stage": "0"}, "it is of another stage"),
        ({"settings": "0"}, "it was made with other settings"),
        ({"sha256": "0"}, "it is damaged"),
    ],
)
def test_one_that_does_not_fit_is_ignored_with_one_line(change, told, stage) -> None:
    path, _ = stage
    wanted = opened(stage).run({"x": X})["y"].copy()
    made = read_toml(path / MADE, Made, "note")
    (path / MADE).write_bytes(dump_toml(msgspec.structs.replace(made, **change)))
    again = opened(stage)
    (note,) = again.notes
    assert note.startswith(f"ignored: compiled.blob, the compiled graph: {told}")
    assert "\n" not in note
    assert np.array_equal(again.run({"x": X})["y"], wanted)
    assert opened(stage).notes == (), "what was compiled took its place"


@pytest.mark.parametrize("left", [b"", b"no blob at all" * 100, None])
def test_one_that_cannot_be_read_is_ignored_with_one_line(left, stage) -> None:
    """Even where its note says that this is what was written."""
    path, _ = stage
    opened(stage)
    if left is None:
        (path / BLOB).unlink()
    else:
        (path / BLOB).write_bytes(left)
        made = read_toml(path / MADE, Made, "note")
        made = msgspec.structs.replace(made, sha256=hashlib.sha256(left).hexdigest())
        (path / MADE).write_bytes(dump_toml(made))
    (note,) = opened(stage).notes
    assert note.startswith("ignored: compiled.blob")
    assert "Exception from" not in note, "the reason, not a line of OpenVINO's sources"
    assert opened(stage).notes == ()


def test_a_note_that_is_none_is_ignored_with_one_line(stage) -> None:
    path, _ = stage
    opened(stage)
    (path / MADE).write_text("format = 1\n")
    (note,) = opened(stage).notes
    assert note.startswith("ignored: compiled.blob")
    assert "error[" not in note, "an error in a note is no error"


def test_where_nothing_may_be_written_the_graph_runs_all_the_same(stage) -> None:
    path, _ = stage
    (path / BLOB).mkdir()  # no file can take its place, whoever runs this
    assert opened(stage).run({"x": X})["y"].shape == (2, 4)
    assert not (path / MADE).exists()


def test_a_stage_that_is_no_bundle_gets_none(stage) -> None:
    path, _ = stage
    (path / NODE).rmdir()
    opened(stage)
    assert not (path / NODE).exists()


def test_loading_a_bundle_says_it(stage, monkeypatch) -> None:
    path, spec = stage
    opened(stage)
    (path / BLOB).write_bytes(b"")
    monkeypatch.setattr("ruvrun.pipeline.loading.verify_bundle", lambda *_: spec)
    monkeypatch.setattr("ruvrun.pipeline.loading.largest_part", lambda _: 1 << 20)
    said: list[str] = []
    load_worker(path, None, 0, context=0, streams=0, threads=1, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["ignored"]
