"""Builds for other machines and from given costs: what is scaled says so, what is given is not measured again."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import msgspec
import pytest

from ruvcompile.errors import InputError, IntegrityError
from ruvcompile.targets import data_root
from ruvrun.costs import CostTable, dump_costs, load_costs, merge
from ruvrun.manifest import load_manifest, load_nodes
from ruvrun.profile.provenance import provenance
from tests.compiler.builds import build, check_whole, plan, rates, snapshot
from tests.models import write_tiny_gguf


@pytest.fixture(scope="module")
def built(model, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("built") / "dist"
    build(model, output, name="the model", measured=True, backend="onnxruntime")
    return output


@pytest.fixture(scope="module")
def pis(model, tmp_path_factory) -> Path:
    output = tmp_path_factory.mktemp("pis") / "dist"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ruvcompile.measure.fleet.measure_rates", rates)
        result = build(model, output, target="pi5", nodes="4", measured=True)
    assert result["cost_source"] == "scaled"
    return output


NAMES = [f"pi5-{number}" for number in range(4)]


def test_four_pis_get_four_bundles(pis) -> None:
    manifest, specs = check_whole(pis)
    assert [node.name for node in manifest.node] == NAMES
    assert [stage.target for stage in manifest.stage] == ["pi5"] * 4
    assert [spec.target for spec in specs] == ["pi5"] * 4
    (model,) = [path for path in (pis / "deliver/haproxy").glob("*.cfg") if path.name != "00-front.cfg"]
    assert manifest.space is not None
    at_work = len(manifest.pipeline) * manifest.space.streams
    assert f"maxconn {at_work}\n" in model.read_text(), "as many as are at work, of all pipelines"
    assert sorted(path.name for path in (pis / "bundles").iterdir()) == NAMES
    for name in NAMES:
        own = pis / "bundles" / name / "node"
        assert os.access(own / "install.sh", os.X_OK)
        assert "[Service]" in (own / "ruvrun.service").read_text()
        assert (own / "ruvrun.env").is_file()
        assert (own / "head").is_dir() == (name == NAMES[0])


def test_addresses_are_to_be_edited(pis) -> None:
    nodes = load_nodes(pis / "nodes.toml")
    assert [(entry.address, entry.port) for entry in nodes.node] == [(f"{name}.local", 7070) for name in NAMES]


def test_scaled_costs_say_so_and_how(pis) -> None:
    table = load_costs(pis / "costs.toml")
    assert {row.target for row in table.unit} == {"pi5"}
    assert all(row.threads == 4 for row in table.unit)
    (how,) = [entry.software for entry in table.provenance]
    assert how.startswith("scaled memory_bandwidth 2e+10 to 9.12e+09 B/s (published); ")
    assert how.endswith(f"; {provenance('onnxruntime', '', 0).software}")
    assert load_manifest(pis / "manifest.toml").plan.cost_source == "scaled"
    assert "Costs: scaled." in (pis / "report.html").read_text()


def test_a_build_from_its_own_scaled_costs_is_the_same(pis, model, monkeypatch) -> None:
    """Rows that were given are not scaled from a measurement again, though this machine is no pi5."""
    monkeypatch.setattr("ruvcompile.measure.fleet.measure_rates", None)
    monkeypatch.setattr("ruvcompile.measure.decoder.profile_stage", None)
    costs = pis.parent / "given.toml"
    costs.write_bytes((pis / "costs.toml").read_bytes())
    first = snapshot(pis)
    build(model, pis, target="pi5", nodes="4", costs=(str(costs),), measured=True)
    assert snapshot(pis) == first


def test_missing_rows_are_measured_and_given_ones_kept(built, model, tmp_path) -> None:
    table = load_costs(built / "costs.toml")
    given = msgspec.structs.replace(table.unit[0], ms=123.0)
    costs = tmp_path / "some.toml"
    costs.write_bytes(dump_costs(CostTable(provenance=table.provenance, unit=[given])))
    build(model, tmp_path / "dist", costs=(str(costs),))
    found = load_costs(tmp_path / "dist" / "costs.toml")
    assert {row.key for row in found.unit} == {row.key for row in table.unit}
    assert [row.ms for row in found.unit if row.key == given.key] == [123.0]
    assert all(row.ms < 123.0 for row in found.unit if row.key != given.key)


def test_rows_of_another_model_do_not_count(built, tmp_path) -> None:
    """A table of nothing else is a mistake; beside rows of this model they are passed over."""
    other = write_tiny_gguf(tmp_path / "other.gguf", hidden=96, heads=6, layers=2)
    with pytest.raises(InputError, match="is of another model"):
        build(other, tmp_path / "dist", costs=(str(built / "costs.toml"),))
    build(other, tmp_path / "dist", measured=True, backend="onnxruntime")
    old, new = (load_costs(path / "costs.toml") for path in (built, tmp_path / "dist"))
    assert len(new.unit) == 4, "embedding, attention, MLP, head"
    assert not {row.key for row in old.unit} & {row.key for row in new.unit}
    (tmp_path / "both.toml").write_bytes(dump_costs(merge([old, new])))
    build(other, tmp_path / "again", costs=(str(tmp_path / "both.toml"),), measured=True)
    again = load_costs(tmp_path / "again" / "costs.toml")
    assert [msgspec.structs.replace(row, source=0) for row in again.unit] == new.unit
    assert {again.provenance[row.source] for row in again.unit} == {new.provenance[row.source] for row in new.unit}


def test_rows_serve_a_model_of_the_same_shapes(built, tmp_path, monkeypatch) -> None:
    """Keys are of what is computed: more layers of the same kind need no measurement."""
    monkeypatch.setattr("ruvcompile.measure.decoder.profile_stage", None)
    other = write_tiny_gguf(tmp_path / "other.gguf", layers=5, seed=9)
    result = plan(other, tmp_path, costs=(str(built / "costs.toml"),))
    assert result["cost_source"] == "measured"


def test_several_tables_and_the_last_one_counts(built, model, tmp_path) -> None:
    table = load_costs(built / "costs.toml")
    doubled = [msgspec.structs.replace(row, ms=row.ms * 1000, curve=[]) for row in table.unit]
    path = tmp_path / "more.toml"
    path.write_bytes(dump_costs(msgspec.structs.replace(table, unit=doubled)))
    first = plan(model, tmp_path, costs=(str(built / "costs.toml"), str(path)))
    second = plan(model, tmp_path, costs=(str(path), str(built / "costs.toml")))
    assert first["bottleneck_ms"] > 100 * second["bottleneck_ms"]


def test_costs_of_another_form_are_refused(model, tmp_path) -> None:
    (tmp_path / "costs.toml").write_text("[[unit]]\nkey = 3\n")
    with pytest.raises(InputError) as error:
        plan(model, tmp_path, costs=(str(tmp_path / "costs.toml"),))
    assert error.value.ref == "toml-wrong"


def test_measured_rows_are_whole(built) -> None:
    """Four kinds of units, each with its nodes, which add up; and on what it was measured."""
    table = load_costs(built / "costs.toml")
    assert sorted(row.label for row in table.unit) == ["embed", "head", "layers.*.attn", "layers.*.mlp"]
    for row in table.unit:
        assert row.ms > 0
        assert row.ms_per_token >= 0, "what is under a nanosecond in a tiny model is rounded away"
        assert sum(node.ms for node in row.node) == pytest.approx(row.ms, abs=1e-6 * len(row.node))
        assert (row.depth, row.chunk) == (128, 128)
    (number,) = {row.source for row in table.unit}
    source = table.provenance[number]
    assert "onnxruntime" in source.software
    assert source.model == "the model"
    assert source.threads == table.unit[0].threads
    assert source.cpu


@pytest.mark.parametrize("context", [8, 40, 200])
def test_a_short_context_is_measured_within_it(tmp_path, context) -> None:
    short = write_tiny_gguf(tmp_path / "short.gguf", context=context, layers=1)
    build(short, tmp_path / "dist", measured=True, backend="onnxruntime")
    assert all(row.depth == context // 2 for row in load_costs(tmp_path / "dist" / "costs.toml").unit)


def test_keys_of_the_fleet_file_are_made_once_beside_it(model, built, tmp_path) -> None:
    fleet = tmp_path / "fleet.toml"
    fleet.write_text('[[node]]\nname = "a"\ntarget = "host"\n[[node]]\nname = "b"\ntarget = "host"\n')
    flags = {"fleet": str(fleet), "costs": (str(built / "costs.toml"),)}
    for output in ("one", "two"):
        build(model, tmp_path / output, **flags)
        assert not (tmp_path / output / "fleet.keys").exists()
    one, two = (load_manifest(tmp_path / output / "manifest.toml") for output in ("one", "two"))
    assert one == two
    build(model, tmp_path / "two", **flags, new_keys=True)
    assert {node.public_key for node in load_manifest(tmp_path / "two" / "manifest.toml").node}.isdisjoint(
        {node.public_key for node in one.node}
    )


def test_a_node_that_was_left_out_keeps_its_key(model, built, tmp_path) -> None:
    keys = []
    for nodes in ("2", "1", "2"):
        build(model, tmp_path / "dist", nodes=nodes)
        keys.append({node.name: node.public_key for node in load_manifest(tmp_path / "dist" / "manifest.toml").node})
    assert keys[0] == keys[2]
    assert keys[1]["host-0"] == keys[0]["host-0"]


@pytest.mark.parametrize(
    ("text", "ref"),
    [
        *((text, "key-wrong") for text in ("", "half", "a b", "\xff")),
        (f"{'x' * 40}\n{'y' * 40}\n", "key-pair-wrong"),
    ],
)
def test_a_damaged_key_is_told(model, built, tmp_path, text, ref) -> None:
    output = tmp_path / "dist"
    build(model, output, costs=(str(built / "costs.toml"),))
    (output / "fleet.keys" / "host-1.secret").write_text(text, "latin-1")
    with pytest.raises((InputError, IntegrityError)) as error:
        build(model, output, costs=(str(built / "costs.toml"),))
    assert error.value.ref == ref


def test_a_key_that_others_can_read_is_told(model, built, tmp_path) -> None:
    output = tmp_path / "dist"
    build(model, output, costs=(str(built / "costs.toml"),))
    (output / "fleet.keys" / "host-1.secret").chmod(0o644)
    with pytest.raises(IntegrityError) as error:
        build(model, output, costs=(str(built / "costs.toml"),))
    assert error.value.ref == "key-exposed"
    check_whole(output)


def test_a_head_without_a_stage_gets_a_bundle_without_one(model, built, tmp_path) -> None:
    fleet = tmp_path / "fleet.toml"
    tables = "".join(f'[[node]]\nname = "{name}"\ntarget = "host"\n' for name in "abc")
    fleet.write_text(f'head = "c"\n{tables}[[place]]\nmatch = "/*"\non = ["a", "b"]\n')
    build(model, tmp_path / "dist", fleet=str(fleet), stages=2)
    manifest, _ = check_whole(tmp_path / "dist")
    assert manifest.head.node == "c"
    assert [entry.node for entry in manifest.pipeline[0].stages] == ["a", "b"]
    files = snapshot(tmp_path / "dist" / "bundles" / "c")
    assert "bundle.toml" not in files
    assert {"manifest.toml", "node/head/tokenizer.json", "node/link.key"} <= files.keys()
    assert not (tmp_path / "dist" / "bundles" / "a" / "node" / "head").exists()
    assert tomllib.loads(files["node/nodes.toml"].decode())["node"][2]["name"] == "c"


def test_a_target_of_ones_own_is_built_for_without_a_line_of_code(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "targets" / "camera"
    (folder / "templates").mkdir(parents=True)
    text = (data_root() / "pi5" / "target.toml").read_text()
    (folder / "target.toml").write_text(text.replace("cores = 4", 'cores = 4\ndeploy = ["90-camera.rules"]'))
    (folder / "templates" / "90-camera.rules.j2").write_text("# the camera of {{ node }}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ruvcompile.measure.fleet.measure_rates", rates)
    build(model, tmp_path / "dist", target="camera", nodes="2")
    manifest, specs = check_whole(tmp_path / "dist")
    assert [spec.target for spec in specs] == ["camera"] * 2
    for node in manifest.node:
        rules = tmp_path / "dist" / "bundles" / node.name / "node" / "90-camera.rules"
        assert rules.read_text() == f"# the camera of {node.name}\n"
