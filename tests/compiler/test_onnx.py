from __future__ import annotations

import os
import tracemalloc
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.passes.cuts import units
from ruvcompile.passes.extract import extract
from ruvcompile.samples import sample
from ruvcompile.whole import run_whole
from ruvrun.bundle import file_sha256
from ruvrun.errors import InputError
from tests.graphs import PP_OCR, SILERO_VAD, assert_equal, make_model, model_path, tensor, weight

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


CIRCLE = [
    helper.make_node("Relu", ["b"], ["a"]),
    helper.make_node("Add", ["a", "x"], ["b"]),
    helper.make_node("Relu", ["b"], ["y"]),
]


def small() -> onnx.ModelProto:
    return make_model(
        [helper.make_node("Add", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        [tensor("x", [2, 3])],
        [tensor("y", [2, 3])],
        [weight("w", [1, 2, 3])],
    )


def save(model: onnx.ModelProto, path: Path) -> str:
    path.write_bytes(model.SerializeToString())
    return str(path)


def with_external(path: Path) -> str:
    model = small()
    model.graph.initializer[0].CopyFrom(weight("w", np.ones((2, 3))))
    onnx.save_model(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return str(path)


def refused(path_text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        load(path_text)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return caught.value


def test_a_file_is_read_under_its_own_name(tmp_path) -> None:
    path = tmp_path / "net.v2.onnx"
    program = load(save(small(), path))
    assert program.name == "net.v2"
    assert program.source.path == str(path)
    assert program.source.sha256 == file_sha256(path)
    assert program.decoder is None
    assert_equal(run_whole(program.model, {"x": X}), {"y": np.maximum(X + np.float32([1, 2, 3]), 0)})


def test_content_counts_and_the_name_does_not(tmp_path) -> None:
    assert len(load(save(small(), tmp_path / "net.data")).model.graph) == 2


@pytest.mark.parametrize("name", ["missing.onnx", "missing.gguf", "no/such/file.onnx"])
def test_a_missing_file(tmp_path, name) -> None:
    error = refused(str(tmp_path / name))
    assert error.ref == "file-missing"
    assert name in error.message


@pytest.mark.parametrize(
    ("text", "ref"), [("someone/some-model", "model-kind-unsupported"), (".", "directory-without-model")]
)
def test_hub_ids_and_directories_of_something_else_are_told_what_is_read(text, ref) -> None:
    error = refused(text)
    assert error.ref == ref
    assert ".gguf" in error.hint
    assert ".onnx" in error.hint


@pytest.mark.parametrize("content", [b"", b"hello, this is no model\n", b"\x00" * 64, b"PK\x03\x04 a zip", b"\xff" * 9])
def test_what_is_no_model(tmp_path, content) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(content)
    assert refused(str(path)).ref == "model-invalid"


def test_a_file_cut_off_anywhere_is_refused(tmp_path) -> None:
    whole = small().SerializeToString()
    path = tmp_path / "net.onnx"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert refused(str(path)).ref == "model-invalid"


@pytest.mark.parametrize(
    ("nodes", "why"),
    [
        ([helper.make_node("Relu", ["nowhere"], ["y"], name="n")], "node 'n' reads 'nowhere', which is made nowhere"),
        ([helper.make_node("Relu", ["x"], ["other"])], "its output 'y' is made by no node"),
        (CIRCLE, "these nodes form a cycle: "),
        ([helper.make_node("Add", ["x", "y"], ["y"], name="me")], "these nodes form a cycle: me -> me"),
    ],
    ids=["undefined", "output", "cycle", "itself"],
)
def test_an_inconsistent_graph(tmp_path, nodes, why) -> None:
    model = make_model(nodes, [tensor("x", [2, 3])], [tensor("y", [2, 3])])
    assert why in " ".join(refused(save(model, tmp_path / "net.onnx")).context).lower()


def test_a_circle_through_a_body_is_told_by_its_nodes(tmp_path) -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["y"], ["b"])], "branch", [], [tensor("b", [2, 3])])
    model = make_model(
        [
            helper.make_node("If", ["flag"], ["t"], name="choice", then_branch=branch, else_branch=branch),
            helper.make_node("Relu", ["t"], ["y"], name="last"),
        ],
        [tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", [2, 3])],
    )
    (why,) = refused(save(model, tmp_path / "net.onnx")).context
    assert why in (f"these nodes form a cycle: {way}" for way in ("choice -> last -> choice", "last -> choice -> last"))


def test_two_weights_of_one_name_are_refused_unless_they_are_the_same(tmp_path) -> None:
    model = small()
    twice = model.graph.initializer.add()
    twice.CopyFrom(model.graph.initializer[0])
    assert load(save(model, tmp_path / "net.onnx")).name == "net"
    twice.CopyFrom(weight(twice.name, [3, 2, 1]))
    assert repr(twice.name) in refused(save(model, tmp_path / "net.onnx")).context[0]


def test_sizes_below_nought_are_open_ones(tmp_path) -> None:
    """Exporters write -1, and ONNX Runtime reads it so."""
    node = helper.make_node("Relu", ["x"], ["y"])
    model = make_model([node], [tensor("x", [-1, 3])], [tensor("y", [-5, 3])])
    loaded = load(save(model, tmp_path / "net.onnx")).model
    assert sample(loaded).arrays["x"].shape == (1, 3)
    assert loaded.graph.outputs[0].shape.is_unknown_dim(0)


def test_a_file_in_onnx_runtimes_own_format_is_told_as_such(tmp_path) -> None:
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "net.onnx")
    options.add_session_config_entry("session.save_model_format", "ORT")
    onnxruntime.InferenceSession(small().SerializeToString(), options)
    error = refused(str(tmp_path / "net.onnx"))
    assert (error.ref, "own format" in error.message) == ("model-kind-unsupported", True)


def test_why_it_does_not_load_is_said_without_the_source_of_onnx_runtime(tmp_path) -> None:
    model = small()
    model.ir_version = 99
    with pytest.raises(InputError) as caught:
        run_whole(load(save(model, tmp_path / "net.onnx")).model, {"x": X})
    (why,) = caught.value.context
    assert "IR version: 99" in why
    assert "/" not in why


def test_nodes_out_of_order_are_put_in_order(tmp_path) -> None:
    model = small()
    nodes = list(reversed(model.graph.node))
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    program = passes.run(load(save(model, tmp_path / "net.onnx")))
    assert [node.op_type for node in program.model.graph] == ["Add", "Relu"]


def test_an_undefined_name_inside_a_body_is_found(tmp_path) -> None:
    branch = helper.make_graph([helper.make_node("Neg", ["ghost"], ["b"])], "branch", [], [tensor("b", [2, 3])])
    model = make_model(
        [helper.make_node("If", ["flag"], ["y"], then_branch=branch, else_branch=branch)],
        [tensor("flag", [], TensorProto.BOOL)],
        [tensor("y", [2, 3])],
    )
    assert "ghost" in refused(save(model, tmp_path / "net.onnx")).context[0]


def test_external_data_is_read_from_beside_the_file(tmp_path, monkeypatch) -> None:
    with_external(tmp_path / "net.onnx")
    monkeypatch.chdir(tmp_path)
    program = passes.run(load("net.onnx"))
    monkeypatch.chdir("/")
    assert_equal(run_whole(program.model, {"x": X}), {"y": np.maximum(X + 1, 0)})


def test_external_data_that_is_missing_short_outside_or_linked(tmp_path) -> None:
    path = with_external(tmp_path / "net.onnx")
    data = tmp_path / "w.bin"
    data.write_bytes(data.read_bytes()[:-1])
    assert refused(path).ref == "external-data-short"
    data.unlink()
    error = refused(path)
    assert error.ref == "external-data-missing"
    assert "w.bin" in error.message
    with_external(tmp_path / "net.onnx")
    os.link(data, tmp_path / "second.bin")
    assert refused(path).ref == "external-data-linked"
    model = onnx.load_model(path, load_external_data=False)
    next(entry for entry in model.graph.initializer[0].external_data if entry.key == "location").value = "../w.bin"
    assert refused(save(model, tmp_path / "net.onnx")).ref == "external-data-outside"


@pytest.mark.parametrize(
    ("key", "value", "ref"),
    [
        ("offset", "-4", "model-invalid"),
        ("length", "1", "model-invalid"),
        ("length", "400", "external-data-short"),
        ("location", "a\0b", "external-data-missing"),
        ("location", "n" * 300, "external-data-missing"),
        ("location", "circle", "external-data-missing"),
    ],
)
def test_external_data_whose_place_cannot_be(tmp_path, key, value, ref) -> None:
    model = onnx.load_model(with_external(tmp_path / "net.onnx"), load_external_data=False)
    (stored,) = [entry for entry in model.graph.initializer if entry.data_location == TensorProto.EXTERNAL][:1]
    del stored.external_data[:]
    for name, text in {"location": "w.bin", key: value}.items():
        stored.external_data.add(key=name, value=text)
    (tmp_path / "w.bin").write_bytes(b"\0" * 4)
    (tmp_path / "circle").symlink_to("circle")
    assert refused(save(model, tmp_path / "net.onnx")).ref == ref


@pytest.mark.parametrize(
    ("dims", "location"), [([4, 4], "../w.bin"), ([4, 4], "none.bin"), ([2**50, 4], None)], ids=str
)
def test_a_sparse_weight_that_cannot_be_made(tmp_path, dims, location) -> None:
    values = weight("w", [1, 2])
    if location is not None:
        values.ClearField("raw_data")
        values.data_location = TensorProto.EXTERNAL
        values.external_data.add(key="location", value=location)
    model = make_model([helper.make_node("Add", ["x", "w"], ["y"])], [tensor("x", [4, 4])], [tensor("y", [4, 4])])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, weight("at", [1, 9], np.int64), dims))
    assert refused(save(model, tmp_path / "net.onnx")).ref == "model-invalid"


def test_two_gigabytes_of_weights_are_not_read_to_cut(tmp_path) -> None:
    rows = 2_100_000_000 // (4 * 1024)
    big = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[rows, 1024], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "w.bin"), ("offset", "0"), ("length", str(rows * 4096))):
        big.external_data.add(key=key, value=value)
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(rows * 4096)
    model = make_model(
        [helper.make_node("Gather", ["w", "ids"], ["a"]), helper.make_node("Relu", ["a"], ["y"])],
        [tensor("ids", [2], TensorProto.INT64)],
        [tensor("y", [2, 1024])],
        [big],
    )
    path = save(model, tmp_path / "net.onnx")
    tracemalloc.start()
    program = passes.run(load(path))
    found = units(program.model)
    first = extract(program.model, found[0].nodes, inputs=["ids"], outputs=["a"], name="first")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    held = first.graph.initializers["w"].const_value
    assert held is not None
    assert held.raw is None, "the data was mapped"
    assert peak < 50e6


@pytest.mark.model
@pytest.mark.parametrize("name", [SILERO_VAD, PP_OCR])
def test_real_models_load(name) -> None:
    program = load(str(model_path(name)))
    assert program.name == name.removesuffix(".onnx")


def test_a_cache_of_links_works(tmp_path, monkeypatch) -> None:
    """As a hub's cache has it: model and data are links in one folder to files of other names in another."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main with spaces é"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    with_external(tmp_path / "net.onnx")
    (tmp_path / "net.onnx").rename(blobs / "aaa")
    (tmp_path / "w.bin").rename(blobs / "bbb")
    (snapshot / "net.onnx").symlink_to("../../blobs/aaa")
    (snapshot / "w.bin").symlink_to("../../blobs/bbb")
    monkeypatch.chdir(tmp_path)
    program = load(str(snapshot / "net.onnx"))
    assert program.name == "net"
    for value in program.model.graph.initializers.values():
        assert value.const_value.numpy().size


def test_a_link_that_leads_elsewhere_is_outside(tmp_path) -> None:
    (tmp_path / "model").mkdir()
    path = with_external(tmp_path / "model" / "net.onnx")
    (tmp_path / "model" / "w.bin").rename(tmp_path / "w.bin")
    (tmp_path / "model" / "w.bin").symlink_to("../w.bin")
    assert refused(path).ref == "external-data-outside"
