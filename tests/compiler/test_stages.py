"""Several pipelines in one build: what is equal is computed once and is equal to the byte, wherever it lies."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import helper

from ruvcompile.contract import Contents
from ruvcompile.disk import check_copies
from ruvcompile.emit import write_build
from ruvcompile.errors import IntegrityError, MachineError
from ruvcompile.load import load
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.weights import WeightStore
from ruvcompile.options import Options
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.plan import Member, Plan
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.stages import Lowered, check_stages, copy_file, divide, lower_stages
from ruvcompile.targets import fleet_targets
from ruvcompile.verify import compare
from ruvrun.bundle import BUNDLES, NODE, verify_bundle
from ruvrun.costs import CostTable
from ruvrun.manifest import Manifest, Space, load_manifest, load_nodes
from tests.compiler.builds import build, options, snapshot
from tests.compiler.planned import fleet, node, plan_of, table
from tests.decoders import tiny_program
from tests.graphs import make_model, program_of, tensor, weight
from tests.models import write_tiny_gguf

FOUR = "".join(f"[[node]]\nname = '{name}'\ntarget = 'host'\n" for name in "abcd")
LAST_ELSE = FOUR.replace("'d'\ntarget = 'host'", "'d'\ntarget = 'pi5'")
MIXED = LAST_ELSE.replace("'c'\ntarget = 'host'", "'c'\ntarget = 'pi5'")


def asked(tmp_path: Path, text: str) -> Options:
    """Options for a model that is not read, and a fleet."""
    model, path = tmp_path / "model.onnx", tmp_path / "fleet.toml"
    model.touch()
    path.write_text(text)
    return options(model, tmp_path / "dist", fleet=str(path))


def planned(program: Program, chosen: Options, *, replicas: int, cuts: Sequence[int]) -> Plan:
    """The nodes of the fleet in order, in so many pipelines."""
    targets = fleet_targets(chosen)
    members = [Member(node, targets[node.target], 1) for node in chosen.fleet.nodes]
    stages = len(cuts) + 1
    pipelines = tuple(tuple(members[each * stages : (each + 1) * stages]) for each in range(replicas))
    units = program_units(program)
    figures: dict[str, Any] = {
        "cost_source": "measured",
        "bottleneck_ms": 2.0,
        "lower_bound_ms": 2.0,
        "gap": 0.0,
        "verdict": "",
        "stages": [
            {"node": member.node.name, "predicted_ms": float(place + 1)}
            for pipeline in pipelines
            for place, member in enumerate(pipeline)
        ],
    }
    space = Space(context=32, streams=4) if program.decoder is not None else None
    template = plan_of(program, fleet(node("any")), table(program, {"pi5": 1.0}))
    return replace(
        template,
        pipelines=pipelines,
        pieces=pieces(program, units, cuts),
        units=units,
        keys=unit_keys(program, units),
        space=space,
        figures=figures,
        expected=(),
    )


def written(program: Program, plan: Plan, chosen: Options, work: Path, samples: Any = None) -> tuple[Manifest, Lowered]:
    """The build in ``work``."""
    store = WeightStore(work / "store")
    keyed = Keyed(plan.units, plan.keys)
    lowered = check_stages(lower_stages(program, keyed, {}, plan, work, store), samples or {})
    store.remove()
    return write_build(work, Contents(program, plan, lowered, CostTable(), "none", {}, ()), chosen), lowered


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("tiny"), layers=3)


@pytest.fixture(scope="module")
def replicas(decoder: Program, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest, Lowered]:
    """Two pipelines of two stages on four equal nodes."""
    tmp_path = tmp_path_factory.mktemp("replicas")
    chosen = asked(tmp_path, FOUR)
    (tmp_path / "dist").mkdir()
    plan = planned(decoder, chosen, replicas=2, cuts=(3,))
    return tmp_path / "dist", *written(decoder, plan, chosen, tmp_path / "dist")


def test_replicas_are_pipelines_of_the_same_stages(replicas: tuple[Path, Manifest, Lowered]) -> None:
    directory, manifest, lowered = replicas
    assert load_manifest(directory / "manifest.toml") == manifest
    assert len(manifest.stage) == len(lowered.stages) == 2
    assert [[(each.stage, each.node) for each in pipeline.stages] for pipeline in manifest.pipeline] == [
        [(0, "a"), (1, "b")],
        [(0, "c"), (1, "d")],
    ]
    assert manifest.plan.stage_ms == [1.0, 2.0]
    assert len(lowered.chains) == 1


def test_equal_stages_are_equal_bytes_and_every_bundle_is_whole(replicas: tuple[Path, Manifest, Lowered]) -> None:
    directory, manifest, _ = replicas
    for pipeline in manifest.pipeline:
        for placed in pipeline.stages:
            spec = verify_bundle(directory / BUNDLES / placed.node, manifest, placed.stage)
            assert spec.golden is not None
    for first, other in ("ac", "bd"):
        one, two = (snapshot(directory / BUNDLES / name) for name in (first, other))
        assert {k: v for k, v in one.items() if not k.startswith(NODE)} == {
            k: v for k, v in two.items() if not k.startswith(NODE)
        }
        assert one["node/link.key"] != two["node/link.key"]


def test_no_weights_have_several_links(replicas: tuple[Path, Manifest, Lowered]) -> None:
    files = list((replicas[0] / BUNDLES).glob("*/weights/*"))
    assert files
    assert {path.stat().st_nlink for path in files} == {1}


def test_every_node_has_its_port(replicas: tuple[Path, Manifest, Lowered]) -> None:
    nodes = load_nodes(replicas[0] / "nodes.toml").node
    assert [node.name for node in nodes] == ["a", "b", "c", "d"]
    assert len({node.port for node in nodes}) == 4


def graph() -> Program:
    nodes = [helper.make_node(kind, [f"v{at}"], [f"v{at + 1}"]) for at, kind in enumerate(["Relu", "Exp", "Neg"])]
    nodes.append(helper.make_node("MatMul", ["v3", "w"], ["y"]))
    weights = [weight("w", np.arange(640 * 4).reshape(640, 4) / 1e3)]
    return program_of(make_model(nodes, [tensor("v0", [1, 640])], [tensor("y", [1, 4])], weights))


def test_another_kind_of_node_has_a_stage_of_its_own(tmp_path: Path) -> None:
    chosen, program = asked(tmp_path, MIXED), graph()
    (tmp_path / "dist").mkdir()
    plan = planned(program, chosen, replicas=2, cuts=(2,))
    samples = {"v0": np.ones((1, 640), np.float32)}
    manifest, lowered = written(program, plan, chosen, tmp_path / "dist", samples)
    assert [stage.target for stage in manifest.stage] == ["host", "host", "pi5", "pi5"]
    assert [[each.stage for each in pipeline.stages] for pipeline in manifest.pipeline] == [[0, 1], [2, 3]]
    assert len(lowered.chains) == 2
    for number, name in enumerate("abcd"):
        bundle = tmp_path / "dist" / BUNDLES / name
        assert verify_bundle(bundle, manifest, number).golden is not None
        assert f"stage {number % 2 + 1} of 2" in (bundle / NODE / "README.md").read_text()


def test_a_stage_that_two_different_pipelines_share_is_checked_once(tmp_path: Path) -> None:
    chosen, program = asked(tmp_path, LAST_ELSE), graph()
    (tmp_path / "dist").mkdir()
    plan = planned(program, chosen, replicas=2, cuts=(2,))
    manifest, lowered = written(program, plan, chosen, tmp_path / "dist", {"v0": np.ones((1, 640), np.float32)})
    assert lowered.division.chains == ((0, 1), (0, 2))
    spec = verify_bundle(tmp_path / "dist" / BUNDLES / "c", manifest, 0)
    assert [file.path for file in spec.files].count("golden.npz") == 1


def test_every_different_pipeline_and_every_bundle_is_verified(tmp_path: Path) -> None:
    chosen, program = asked(tmp_path, MIXED), graph()
    (tmp_path / "dist").mkdir()
    plan = planned(program, chosen, replicas=2, cuts=(2,))
    written(program, plan, chosen, tmp_path / "dist", {"v0": np.ones((1, 640), np.float32)})
    found = compare(tmp_path / "dist/manifest.toml", chosen.model, lambda _: program, 1, Silent())
    assert (found["identical"], found["cases"]) == (True, 2)
    (weights,) = (tmp_path / "dist" / BUNDLES / "d" / "weights").glob("*")
    weights.write_bytes(bytes(weights.stat().st_size))
    with pytest.raises(IntegrityError, match="is not the file the bundle was built with"):
        compare(tmp_path / "dist/manifest.toml", chosen.model, lambda _: program, 1, Silent())


def test_copies_are_counted_against_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, program = asked(tmp_path, FOUR), graph()
    held = 640 * 4 * 4
    monkeypatch.setattr("ruvcompile.disk.SPARE_BYTES", 0)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=2 * held))
    empty = tmp_path / "empty"
    empty.mkdir()
    check_copies(empty, program, planned(program, chosen, replicas=2, cuts=(2,)))
    with pytest.raises(MachineError) as caught:
        check_copies(empty, program, planned(program, chosen, replicas=4, cuts=()))
    assert caught.value.ref == "disk-short"
    assert "copies of them 30.0 KiB" in caught.value.context[0]
    (empty / "store").write_bytes(bytes(held))
    (empty / "bundle").hardlink_to(empty / "store")
    check_copies(empty, program, planned(program, chosen, replicas=3, cuts=()))
    with pytest.raises(MachineError):
        check_copies(empty, program, planned(program, chosen, replicas=4, cuts=()))


def test_a_copy_of_a_file_is_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(bytes(range(256)) * 5000)
    copy_file(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == (tmp_path / "one").read_bytes()
    assert (tmp_path / "other").stat().st_nlink == 1


def test_pipelines_of_one_node_each_hold_the_whole(decoder: Program, tmp_path: Path) -> None:
    division = divide(planned(decoder, asked(tmp_path, FOUR), replicas=4, cuts=()))
    assert division.chains == ((0,),)
    assert [member.node.name for member in division.holders(0)] == ["a", "b", "c", "d"]


def test_a_build_of_replicas_from_the_command_line(tmp_path: Path) -> None:
    """Four equal machines and two stages: two pipelines, whose bundles differ in what is the node's own alone."""
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    machines = [f"[[node]]\nname = '{n}'\ntarget = 'host'\naddress = '{n}.lan'\nthreads = 1\n" for n in "abcd"]
    (tmp_path / "fleet.toml").write_text("".join(machines))
    result = build(model, tmp_path / "dist", fleet=str(tmp_path / "fleet.toml"), stages=2, streams=8)
    assert result["shape"] == {"replicas": 2, "stages": 2}
    assert [(stage["pipeline"], stage["node"]) for stage in result["stages"]] == [
        (0, "a"),
        (0, "b"),
        (1, "c"),
        (1, "d"),
    ]
    manifest = load_manifest(tmp_path / "dist/manifest.toml")
    assert len(manifest.stage) == 2
    files = {name: snapshot(tmp_path / "dist" / BUNDLES / name) for name in "abcd"}
    for first, other in ("ac", "bd"):
        differing = {path for path in files[first] | files[other] if files[first].get(path) != files[other].get(path)}
        assert all(path.startswith(f"{NODE}/") for path in differing)
    found = compare(tmp_path / "dist/manifest.toml", model, lambda path: run_passes(load(path)), 1, Silent())
    assert found["identical"]
