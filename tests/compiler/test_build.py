"""What a build leaves, and law 2: the same model and costs give the same bytes."""

from __future__ import annotations

import datetime
import shutil
import stat
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ruvcompile import compile as steps
from ruvcompile.errors import InputError, IntegrityError
from ruvcompile.passes.quantise import quantise
from ruvcompile.progress import Silent
from ruvrun import executors
from ruvrun.bundle import load_spec, verify_bundle
from ruvrun.executors import load_decoder
from ruvrun.manifest import load_manifest, load_nodes
from ruvrun.pipeline import open_local
from ruvrun.pipeline.selfcheck import check_golden
from tests.compiler.builds import build, check_whole, snapshot
from tests.decoders import ask
from tests.models import write_tiny_gguf

OWN = {
    *("name", "link.key", "nodes.toml", "ruvrun.env", "ruvrun.service", "install.sh", "uninstall.sh"),
    *("ruvrun", "machine.toml", "requirements.txt", "README.md"),
}


@pytest.fixture(scope="module")
def built(model, tmp_path_factory) -> Path:
    """A build of two stages, which no test changes."""
    output = tmp_path_factory.mktemp("built") / "dist"
    build(model, output)
    return output


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def copy(built, tmp_path) -> Path:
    return Path(shutil.copytree(built, tmp_path / "copy"))


def placed(output: Path) -> list[str]:
    """The nodes by the stages they hold: which of equal ones comes first is the plan's to say."""
    return [each.node for each in load_manifest(output / "manifest.toml").pipeline[0].stages]


def test_the_names_of_the_contract(built) -> None:
    for name in ("manifest.toml", "nodes.toml", "costs.toml", "report.html", "fleet.keys"):
        assert (built / name).exists()
    manifest, specs = check_whole(built)
    assert [node.name for node in manifest.node] == ["host-0", "host-1"]
    assert names(built / "bundles") == ["host-0", "host-1"]
    for name, spec in zip(placed(built), specs, strict=True):
        bundle = built / "bundles" / name
        hashed = {file.path for file in spec.files}
        assert {"stage.onnx", "units.toml", "golden.npz"} <= hashed
        assert all(path.startswith("weights/") for path in hashed - {"stage.onnx", "units.toml", "golden.npz"})
        everything = set(snapshot(bundle))
        assert {path for path in everything if not path.startswith("node/")} == {
            *hashed,
            "bundle.toml",
            "manifest.toml",
        }
        assert {f"node/{each}" for each in OWN} <= everything
        assert (bundle / "node" / "name").read_text() == name + "\n"
        assert (bundle / "manifest.toml").read_bytes() == (built / "manifest.toml").read_bytes()
        assert (bundle / "node" / "nodes.toml").read_bytes() == (built / "nodes.toml").read_bytes()
    heads = [name for name in ("host-0", "host-1") if (built / "bundles" / name / "node" / "head").is_dir()]
    assert heads == ["host-0"]
    assert names(built / "bundles/host-0/node/head") == ["chat.json", "tokenizer.json"]


def test_the_json_of_a_build(model, tmp_path) -> None:
    result = build(model, tmp_path / "dist", streams=3, context=100)
    manifest = load_manifest(Path(result["manifest"]))
    assert result["id"] == manifest.id
    assert result["shape"] == {"replicas": 1, "stages": 2}
    assert sorted(stage["node"] for stage in result["stages"]) == ["host-0", "host-1"]
    assert (manifest.space.context, manifest.space.streams) == (100, 3)
    for planned, stage in zip(result["stages"], manifest.stage, strict=True):
        assert planned["kv_bytes"] == stage.kv.bytes_per_token * 100 * 3
        assert planned["graph_nodes"] == stage.graph_nodes
    assert result["seconds"] > 0
    assert result["peak_rss_bytes"] > 2**20
    assert result["cost_source"] == "measured"
    assert 0 <= result["gap"] < 1
    assert result["loss"]["tokens"] == manifest.program.loss["tokens"] > 0
    assert result["loss"]["kl"] > 0


def test_keys_are_for_their_owner_only(built) -> None:
    manifest = load_manifest(built / "manifest.toml")
    for node in manifest.node:
        secret = built / "fleet.keys" / f"{node.name}.secret"
        own = built / "bundles" / node.name / "node" / "link.key"
        assert own.read_text() == secret.read_text()
        assert own.read_text().split()[0] == node.public_key
        assert {stat.S_IMODE(path.stat().st_mode) for path in (own, secret)} == {0o600}
        others = [data for name, data in snapshot(built / "bundles" / node.name).items() if name != "node/link.key"]
        assert not any(own.read_text().split()[1].encode() in data for data in others)


def test_nodes_of_this_machine_have_ports_of_their_own(built) -> None:
    nodes = load_nodes(built / "nodes.toml")
    ports = [entry.port for entry in nodes.node] + [nodes.head.port]
    assert len(set(ports)) == 3
    assert {entry.address for entry in nodes.node} == {"local"}


def test_two_builds_are_the_same_bytes(copy, model, tmp_path) -> None:
    """Report and plan included. The second is built into the first's place, so that it finds its keys."""
    first = snapshot(copy)
    costs = shutil.copy(copy / "costs.toml", tmp_path / "given.toml")
    build(model, copy, costs=(str(costs),))
    second = snapshot(copy)
    assert second.keys() == first.keys()
    assert [name for name in first if second[name] != first[name]] == []


def test_a_complete_table_measures_nothing(copy, model, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ruvcompile.measure.decoder.profile_stage", None)
    result = build(model, tmp_path / "other", costs=(str(copy / "costs.toml"),))
    assert snapshot(tmp_path / "other")["costs.toml"] == (copy / "costs.toml").read_bytes()
    assert result["id"] == load_manifest(copy / "manifest.toml").id


def test_what_is_hashed_depends_on_the_stage_alone(model, built, tmp_path) -> None:
    """Other node names, keys and neighbours: the same stage bytes, and a manifest that tells the builds apart."""
    cut = check_whole(built)[1][0].forward[0]  # other machines have another number of threads, and other costs
    build(model, tmp_path / "dist", nodes="zebra,yak", cut=cut)
    day, keys = datetime.date.today().isoformat(), snapshot(tmp_path / "dist" / "fleet.keys")
    for old, new in zip(placed(built), placed(tmp_path / "dist"), strict=True):
        directory = tmp_path / "dist" / "bundles" / new
        own = {name: data for name, data in snapshot(directory).items() if not name.startswith("node/")}
        before = snapshot(built / "bundles" / old)
        for name, data in own.items():
            if name == "manifest.toml":
                continue
            assert data == before[name]
            for told in ("zebra", "yak", day, *(line for key in keys.values() for line in key.decode().split())):
                assert told.encode() not in data, f"{name} tells {told}"
    one, two = (load_manifest(path / "manifest.toml") for path in (built, tmp_path / "dist"))
    assert one.stage == two.stage
    assert one.id != two.id, "pipelines name their nodes"


def test_a_moved_cut_changes_no_weight_file(model, built, tmp_path) -> None:
    manifest, specs = check_whole(built)
    cut = specs[0].forward[0]
    other = "layers.0/mlp/add" if cut != "layers.0/mlp/add" else "layers.1/attn/add"
    build(model, tmp_path / "dist", cut=other, costs=(str(built / "costs.toml"),))
    moved, again = check_whole(tmp_path / "dist")
    assert again[0].forward == [other]
    weights = [
        {file.path for spec in each for file in spec.files if "weights/" in file.path} for each in (specs, again)
    ]
    assert weights[0] == weights[1]
    assert moved.id != manifest.id


def test_the_golden_check_agrees_when_it_is_run_again(built) -> None:
    manifest, specs = check_whole(built)
    for placed, spec in zip(manifest.pipeline[0].stages, specs, strict=True):
        directory = built / "bundles" / placed.node
        assert spec.golden is not None
        assert spec.golden.bound > 0
        executor = load_decoder(directory, spec, context=64, slots=2, threads=1)
        assert check_golden(directory, spec, executor) == 0.0
        with np.load(directory / spec.golden.file) as stored:
            assert {name.split(".")[0] for name in stored.files} == {"in", "out"}
            assert all(np.abs(stored[name]).max() > spec.golden.bound for name in stored.files if name[:3] == "out")


def test_another_computation_fails_the_golden_check(copy) -> None:
    directory = copy / "bundles" / "host-0"
    spec = load_spec(directory)
    with np.load(directory / "golden.npz") as stored:
        arrays = {name: stored[name] for name in stored.files}
    name = next(name for name in arrays if name.startswith("out."))
    arrays[name] = arrays[name] + 2 * spec.golden.bound
    np.savez(directory / "golden.npz", **arrays)
    with pytest.raises(IntegrityError) as error:
        check_golden(directory, spec, load_decoder(directory, spec, context=64, slots=1, threads=1))
    assert error.value.ref == "golden-mismatch"


def test_one_flipped_byte_anywhere_is_refused_before_anything_is_loaded(copy, monkeypatch) -> None:
    def load(*_: object, **__: object) -> None:
        raise AssertionError("it was loaded")

    monkeypatch.setattr(executors, "load_decoder", load)
    manifest = load_manifest(copy / "manifest.toml")
    directory = copy / "bundles" / placed(copy)[1]
    for name in ["bundle.toml", *(file.path for file in load_spec(directory).files)]:
        path = directory / name
        good = path.read_bytes()
        for place in (0, len(good) // 2, len(good) - 1):
            path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
            with pytest.raises(IntegrityError):
                verify_bundle(directory, manifest, 1)
            with pytest.raises(IntegrityError):
                open_local(copy / "manifest.toml")
        path.write_bytes(good[:-1])
        with pytest.raises(IntegrityError):
            verify_bundle(directory, manifest, 1)
        path.unlink()
        with pytest.raises((IntegrityError, InputError)):
            verify_bundle(directory, manifest, 1)
        path.write_bytes(good)
    verify_bundle(directory, manifest, 1)


def test_a_bundle_of_another_stage_is_refused(copy) -> None:
    manifest = load_manifest(copy / "manifest.toml")
    with pytest.raises(IntegrityError) as error:
        verify_bundle(copy / "bundles" / placed(copy)[0], manifest, 1)
    assert error.value.ref == "bundle-altered"


def test_a_build_answers_and_verifies(built, model) -> None:
    answer = open_local(built / "manifest.toml").generate([ask(0, [5, 6, 7], 8)])[0]
    assert len(answer) == 8
    result = steps.verify(built / "manifest.toml", model, Silent())
    assert result["identical"] is True
    assert result["cases"] >= 3
    assert result["tokens"] == 64 * result["cases"]
    recorded = load_manifest(built / "manifest.toml").program.loss
    assert result["vs_source"] == recorded, "the loss of the build, measured again on the same stages"


def test_verify_notices_another_model(built, tmp_path) -> None:
    other = write_tiny_gguf(tmp_path / "other.gguf", seed=5)
    with pytest.raises(InputError) as error:
        steps.verify(built / "manifest.toml", other, Silent())
    assert error.value.ref == "model-differs"


def test_verify_notices_other_tokens(copy, model, monkeypatch) -> None:
    """What hashes cannot tell: the stages are whole, and compute something else than the uncut program does."""
    monkeypatch.setattr("ruvcompile.verify.build.quantise", lambda source, _, **__: quantise(source, "int8"))
    result = steps.verify(copy / "manifest.toml", model, Silent())
    assert result["identical"] is False


def test_a_given_name_is_the_models_name(model, built, tmp_path) -> None:
    build(model, tmp_path / "dist", name="my model", costs=(str(built / "costs.toml"),))
    manifest = load_manifest(tmp_path / "dist" / "manifest.toml")
    assert manifest.program.name == "my model"
    assert manifest.id == load_manifest(built / "manifest.toml").id, "a name is nothing that is computed"
    assert msgspec.to_builtins(manifest.plan) == msgspec.to_builtins(load_manifest(built / "manifest.toml").plan)
