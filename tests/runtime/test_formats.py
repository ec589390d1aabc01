"""Files that an earlier version wrote must still be read, and mean what they meant.

``tests/data/formats/v1`` is of a build of two nodes. Such files are added when a format grows, and never changed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from ruvrun.bundle import load_spec
from ruvrun.costs import load_costs
from ruvrun.manifest import Address, KeyValue, Tensor, load_manifest, load_nodes

V1 = Path(__file__).parents[1] / "data" / "formats" / "v1"
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


@pytest.mark.parametrize("name", ["manifest", "nodes", "bundle", "costs"])
def test_the_number_of_the_format_stands_in_every_file(name: str) -> None:
    assert (V1 / f"{name}.toml").read_text().startswith("format = 1\n")
