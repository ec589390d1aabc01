"""Compiled graphs beside a bundle: taken where all is as it was, else ignored with one line, and made anew."""

from __future__ import annotations

import hashlib
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from onnx import helper

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvrun.bundle import COMPILED, NODE
from ruvrun.errors import IntegrityError
from ruvrun.executors.openvino.compiled import CACHE, Made, Shelf
from ruvrun.executors.openvino.cpu import load_graph
from ruvrun.executors.openvino.devices import Device
from ruvrun.executors.openvino.graph import OpenVinoGraph
from ruvrun.pipeline.loading import load_worker
from ruvrun.toml import dump_toml, read_toml
from tests.decoders import Stage
from tests.graphs import make_model, program_of, tensor, weight

BLOB, MADE = f"{COMPILED}/stage.blob", f"{COMPILED}/stage.toml"
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


@pytest.fixture
def loadable(stage, monkeypatch) -> None:
    """The stage is believed to be of a bundle, which is not there."""
    monkeypatch.setattr("ruvrun.pipeline.loading.verify_bundle", lambda *_: stage[1])
    monkeypatch.setattr("ruvrun.pipeline.loading.largest_part", lambda _: 1 << 20)


def check_fails() -> None:
    raise IntegrityError("golden-differs", "it computes something else", hint="-")


@pytest.fixture
def spoilt(loadable, monkeypatch) -> list[bool]:
    """Of every golden check, whether the graph was taken and not compiled; those that were taken fail it."""
    checks: list[bool] = []

    def check(_path: Path, _spec: object, graph: OpenVinoGraph) -> None:
        checks.append(graph.shelf.imported)
        if graph.shelf.imported:
            check_fails()

    monkeypatch.setattr("ruvrun.pipeline.loading.check_golden", check)
    return checks


def opened(stage: Stage) -> OpenVinoGraph:
    """As whoever serves opens it."""
    graph = load_graph(*stage, threads=1)
    graph.shelf.keep()
    return graph


def never() -> None:
    raise AssertionError("the graph was read")


def test_the_second_start_reads_what_the_first_one_left(stage) -> None:
    path, _ = stage
    first = opened(stage)
    assert first.shelf.notes == []
    left = (path / BLOB).read_bytes()
    second = opened(stage)
    assert second.shelf.notes == []
    assert np.array_equal(second.run({"x": X})["y"], first.run({"x": X})["y"])
    assert (path / BLOB).read_bytes() == left


def test_nothing_is_read_or_compiled_where_there_is_one(stage) -> None:
    path, spec = stage
    settings, device = {"INFERENCE_PRECISION_HINT": "f32"}, Device("CPU", "this one", "")
    core = ov.Core()
    first = Shelf(core, path, spec, device, settings)
    first.take(lambda: core.compile_model(core.read_model(path / spec.model), "CPU", settings))
    first.keep()
    again = Shelf(core, path, spec, device, settings)
    assert again.take(never).get_property("INFERENCE_PRECISION_HINT") is not None
    assert again.notes == []


def test_who_measures_or_compares_leaves_nothing(stage) -> None:
    path, _ = stage
    load_graph(*stage, threads=1)
    assert not (path / COMPILED).exists()
    opened(stage)
    left = (path / BLOB).read_bytes()
    other = load_graph(*stage, threads=2)  # of other settings
    assert len(other.shelf.notes) == 1
    assert (path / BLOB).read_bytes() == left


def test_where_there_is_no_room_none_is_left(stage, monkeypatch) -> None:
    path, _ = stage
    monkeypatch.setattr("ruvrun.executors.openvino.compiled.memory_available", lambda: 0)
    opened(stage)
    assert not (path / BLOB).exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"openvino": "2025.1"}, "made with OpenVINO 2025.1, this is 20"),
        ({"machine": "Another CPU"}, "made on Another CPU, this is "),
        ({"sizes": "tokens 7"}, "made for tokens 7, this is "),
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
    (note,) = again.shelf.notes
    assert note.startswith(f"ignored: node/compiled/stage.blob, a compiled graph: {told}")
    assert "\n" not in note
    assert np.array_equal(again.run({"x": X})["y"], wanted)
    assert opened(stage).shelf.notes == [], "what was compiled took its place"


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
    (note,) = opened(stage).shelf.notes
    assert note.startswith("ignored: node/compiled/stage.blob")
    assert "Exception from" not in note, "the reason, not a line of OpenVINO's sources"
    assert opened(stage).shelf.notes == []


def test_a_note_that_is_none_is_ignored_with_one_line(stage) -> None:
    path, _ = stage
    opened(stage)
    (path / MADE).write_text("format = 1\n")
    (note,) = opened(stage).shelf.notes
    assert note.startswith("ignored: node/compiled/stage.blob")
    assert "error[" not in note, "an error in a note is no error"


def test_where_nothing_may_be_written_the_graph_runs_all_the_same(stage) -> None:
    path, _ = stage
    (path / COMPILED).touch()  # no folder can be there, whoever runs this
    assert opened(stage).run({"x": X})["y"].shape == (2, 4)
    assert not (path / MADE).exists()


# Where the release is not the service's to write to


@pytest.fixture
def cache(stage, tmp_path, monkeypatch) -> Path:
    """Where the node's graphs are kept from now on."""
    (stage[0] / NODE / "name").write_text("pi-0\n")
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache/pi-0"


def test_what_is_compiled_is_kept_in_the_folder_that_is_the_services_own(stage, cache, monkeypatch) -> None:
    path, _ = stage
    wanted = opened(stage).run({"x": X})["y"].copy()
    assert sorted(each.name for each in cache.iterdir()) == ["stage.blob", "stage.toml"]
    assert not (path / COMPILED).exists()
    monkeypatch.setattr(ov.Core, "compile_model", lambda *_: never())
    again = opened(stage)
    assert again.shelf.notes == []
    assert np.array_equal(again.run({"x": X})["y"], wanted)


def test_what_came_with_the_release_is_taken_and_left_alone(stage, tmp_path, monkeypatch, request) -> None:
    path, _ = stage
    opened(stage)
    installed = {each.name: each.read_bytes() for each in (path / COMPILED).iterdir()}
    cache = request.getfixturevalue("cache")
    with monkeypatch.context() as patched:
        patched.setattr(ov.Core, "compile_model", lambda *_: never())
        assert opened(stage).shelf.notes == []
    assert list(cache.iterdir()) == []
    other = load_graph(*stage, threads=2)  # of other settings: what fits is kept beside it
    other.shelf.keep()
    assert [note.partition(",")[0] for note in other.shelf.notes] == ["ignored: node/compiled/stage.blob"]
    assert (cache / "stage.blob").exists()
    assert {each.name: each.read_bytes() for each in (path / COMPILED).iterdir()} == installed
    assert opened(stage).shelf.notes == [], "the one that fits is taken without a word on the one that does not"
    assert list(cache.iterdir()) == [], "and that one goes"


def test_a_graph_that_cannot_be_removed_is_not_taken_twice(stage, cache, spoilt, monkeypatch) -> None:
    """It does not compute what it should, and lies where the service may not write."""
    path, _ = stage
    monkeypatch.delenv(CACHE)
    opened(stage)
    monkeypatch.setenv(CACHE, str(cache.parent))
    monkeypatch.setattr("ruvrun.executors.openvino.compiled.shutil.rmtree", lambda *_, **__: None)
    load_worker(path, None, 0, context=0, streams=0, threads=1)
    assert spoilt == [True, False]
    assert (cache / "stage.blob").exists(), "the next start takes this one"


def test_a_stage_that_is_no_bundle_gets_none(stage) -> None:
    path, _ = stage
    (path / NODE).rmdir()
    opened(stage)
    assert not (path / NODE).exists()


def test_one_that_computes_something_else_is_let_go(stage, spoilt, monkeypatch) -> None:
    """Its golden check fails, though all that is noted is as it was."""
    path, _ = stage
    opened(stage)
    said: list[str] = []
    load_worker(path, None, 0, context=0, streams=0, threads=1, say=said.append)
    assert spoilt == [True, False]
    assert said == ["ignored: compiled graphs, which do not compute what they should; compiling anew"]
    assert (path / BLOB).exists(), "what was compiled took its place"
    monkeypatch.setattr("ruvrun.pipeline.loading.check_golden", lambda *_: check_fails())
    (path / BLOB).unlink()
    with pytest.raises(IntegrityError, match="it computes something else"):
        load_worker(path, None, 0, context=0, streams=0, threads=1)


def test_loading_a_bundle_says_it(stage, loadable) -> None:
    path, _ = stage
    opened(stage)
    (path / BLOB).write_bytes(b"")
    said: list[str] = []
    load_worker(path, None, 0, context=0, streams=0, threads=1, say=said.append)
    assert [line.partition(":")[0] for line in said] == ["ignored"]
