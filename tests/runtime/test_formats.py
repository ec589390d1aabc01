"""Files that an earlier version wrote must still be read, and mean what they meant.

``tests/data/formats/v1`` is of a build of two nodes; ``v1-exported`` of a decoder that is run as it was exported,
``v1-texts`` of a graph with texts and an optional, ``v1-curves`` of a decoder whose costs are curves, ``v1-counted`` of
the same with the number of its rows, and ``v1-verified`` of a pipeline of two back ends that was held against what its
weights mean, all as the format had grown by then. Such files are added when a format grows, and never changed.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ruvrun.bundle import State, load_spec
from ruvrun.costs import load_costs
from ruvrun.manifest import Address, Equality, KeyValue, Tensor, load_manifest, load_nodes
from ruvrun.npz import read_npz
from ruvrun.profile.draw import load_probe, numbers
from ruvrun.profile.sheet import Sheet
from ruvrun.toml import read_toml

V1 = Path(__file__).parents[1] / "data" / "formats" / "v1"
EXPORTED, TEXTS, CURVES, COUNTED, VERIFIED = (
    V1.with_name(f"v1-{what}") for what in ("exported", "texts", "curves", "counted", "verified")
)
ID = "228cdd3ee23a8eb771e7aae6e16a6803cc329e0da91c5030e5f98836fa95d1a2"


def test_manifest() -> None:
    manifest = load_manifest(V1 / "manifest.toml")
    assert manifest.id == ID
    assert manifest.program.kind == "decoder"
    assert manifest.program.eos == [0, 2]
    assert [(stage.index, stage.graph_nodes) for stage in manifest.stage] == [(0, 27), (1, 27)]
    assert manifest.stage[0].inputs == [Tensor(name="input_ids", dtype="int64", shape=["tokens"])]
    assert manifest.stage[0].kv == KeyValue(layers=2, heads=2, head_size=16, dtype="float32")
    assert [(node.name, node.cpus, len(node.public_key)) for node in manifest.node] == [
        ("pi-0", [0, 1], 40),
        ("pi-1", [], 40),
    ]
    assert [placed.node for placed in manifest.pipeline[0].stages] == ["pi-0", "pi-1"]
    assert manifest.head.node == "pi-0"
    assert manifest.space is not None
    assert (manifest.space.context, manifest.space.streams) == (256, 4)
    assert manifest.plan.cost_source == "measured"
    assert manifest.plan.verdict


def test_what_was_found_of_pipelines() -> None:
    manifest = load_manifest(VERIFIED / "manifest.toml")
    assert manifest.program.activations == "float"
    assert manifest.equality == [
        Equality(
            pipeline=0,
            backends=["onnxruntime", "openvino"],
            floats=True,
            tokens=64,
            top1_agreement=1.0,
            mean_kl=9.97432e-13,
            max_logit_diff=1.00136e-05,
        )
    ]
    old = load_manifest(V1 / "manifest.toml")
    assert (old.program.activations, old.equality) == ("int8", [])


def test_nodes() -> None:
    nodes = load_nodes(V1 / "nodes.toml")
    assert nodes.node == [
        Address(name="pi-0", address="10.0.0.1", port=7171, ssh="pi@10.0.0.1"),
        Address(name="pi-1", address="10.0.0.2", port=7070, ssh=""),
    ]
    assert nodes.head.port == 7069


def test_bundle(tmp_path: Path) -> None:
    (tmp_path / "bundle.toml").write_bytes((V1 / "bundle.toml").read_bytes())
    spec = load_spec(tmp_path)
    assert (spec.kind, spec.backend, spec.first, spec.last) == ("decoder", "onnxruntime", True, False)
    assert spec.forward == [tensor.name for tensor in spec.outputs] == ["layers.1/attn/add"]
    assert spec.weight_bytes == load_manifest(V1 / "manifest.toml").stage[0].weight_bytes
    assert {"stage.onnx", "golden.npz"} < {file.path for file in spec.files}
    assert spec.golden is not None
    assert spec.requires["protocol"] == "1"


def test_costs() -> None:
    table = load_costs(V1 / "costs.toml")
    assert sorted(row.label for row in table.unit) == ["embed", "head", "layers.*.attn", "layers.*.mlp"]
    (row,) = [row for row in table.unit if row.label == "embed"]
    assert table.rows([row.key, "none"], "host", "onnxruntime", 2) == [row, None]
    assert (row.ms, row.depth, row.chunk) == (0.002411, 128, 128)
    assert [node.op for node in row.node] == ["GatherBlockQuantized"]
    assert table.provenance[row.source].date == "2026-11-30"


def test_costs_as_curves() -> None:
    table = load_costs(CURVES / "costs.toml")
    (embed,) = [row for row in table.unit if row.label == "embed"]
    assert (embed.beside, embed.weight_bytes, embed.step_ms(8, 128), embed.ms) == (2, 21600, 0.003426, 0.001962)
    assert {(point.tokens, point.depth) for point in embed.curve if point.tokens > 1} == {
        (32, 0),
        (128, 0),
        (256, 0),
        (32, 224),
    }
    overhead = table.overhead_of("decoder", "host", "onnxruntime", 1, 2)
    assert overhead is not None
    assert overhead.stage_ms > 0
    assert table.rates("host", "onnxruntime", 1)["memory_bandwidth"].unit == "B/s"
    (source,) = table.provenance
    assert (source.model, source.threads) == ("tiny", 1)
    assert "avx2" in source.features


def test_costs_with_their_number_of_rows() -> None:
    assert load_costs(COUNTED / "costs.toml") == load_costs(CURVES / "costs.toml")


def test_sheet_of_units() -> None:
    sheet = read_toml(CURVES / "units.toml", Sheet, "sheet")
    assert [unit.label for unit in sheet.unit] == ["embed", "layers.*.attn", "layers.*.mlp", "head"]
    assert [unit.key for unit in sheet.unit] == [row.key for row in load_costs(CURVES / "costs.toml").unit]
    assert sheet.unit[0].nodes == ["/embed"]
    assert (sheet.context, sheet.node) == (256, [])


def test_probe() -> None:
    probe = load_probe(V1)
    assert (probe.model, probe.quant, probe.target, probe.threads, probe.seed) == ("tiny", "auto", "pi5", 4, 0)
    assert [file.salt.rpartition(".")[2] for file in probe.file] == ["linear", "linear", "rows"]
    (tensor,) = probe.file[0].tensor
    assert (tensor.offset, tensor.length, tensor.kind, tensor.shift) == (10240, 16384, "bytes", 0)
    drawn = hashlib.sha256(b"".join(numbers(probe.seed, probe.file[0].salt, tensor))).hexdigest()
    assert drawn == "9b8bbd1757233de3002a5dc4cf01da915b1fca1718758575b8398ce5cdf68cc9"


def test_bundle_of_a_decoder_as_it_was_exported() -> None:
    spec = load_spec(EXPORTED)
    assert (spec.kind, spec.exported, load_spec(V1).exported) == ("decoder", True, False)
    assert spec.state == [
        State(past=f"past_{half}.0", present=f"present_{half}.0", heads=2, head_size=16, dtype="float32")
        for half in ("key", "value")
    ]
    assert load_spec(V1).state == []
    manifest = load_manifest(EXPORTED / "manifest.toml")
    assert manifest.program.architecture == "gpt_neox"
    assert manifest.stage[0].kv == spec.kv


def test_graph_with_texts_and_an_optional() -> None:
    program = load_manifest(TEXTS / "manifest.toml").program
    assert [(tensor.name, tensor.dtype) for tensor in (*program.inputs, *program.outputs)] == [
        ("words", "string"),
        ("bias", "optional(float32)"),
        ("z", "float32"),
        ("texts", "string"),
    ]
    assert program.samples[0].startswith("input words: ")
    spec = load_spec(TEXTS)
    assert [tensor.dtype for tensor in spec.inputs] == ["optional(float32)", "string"]
    assert spec.golden is not None
    golden = read_npz(TEXTS / spec.golden.file, ["in.words", "in.bias", "out.y"])
    assert sorted(golden) == ["in.words", "out.y"]
    assert golden["in.words"].tolist() == ["1"] * 16
    assert golden["out.y"].tolist() == [1.0] * 16


@pytest.mark.parametrize("name", ["manifest", "nodes", "bundle", "costs", "probe"])
def test_the_number_of_the_format_stands_in_every_file(name: str) -> None:
    assert (V1 / f"{name}.toml").read_text().startswith("format = 1\n")
