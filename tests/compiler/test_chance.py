"""What is left to chance is known, left out of comparisons, and the same in every build all the same."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ruvcompile import compile as steps
from ruvcompile.cli.results import verify_text
from ruvcompile.passes.chance import left_to_chance
from ruvcompile.progress import Silent
from ruvrun.manifest import load_manifest
from ruvrun.npz import read_npz
from ruvrun.pipeline.loading import load_worker
from tests.compiler.builds import build, check_whole
from tests.graphs import make_model, program_of, tensor, weight


def drawing() -> onnx.ModelProto:
    """``v`` and ``d`` are drawn, ``z`` is not, ``e`` neither: its Dropout is off."""
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["n"], seed=1.0),
        helper.make_node("Mul", ["n", "n"], ["v"]),
        helper.make_node("Neg", ["x"], ["z"]),
        helper.make_node("Dropout", ["z", "ratio", "on"], ["d"]),
        helper.make_node("Dropout", ["z", "ratio", "off"], ["e"]),
    ]
    weights = [weight("ratio", 0.5), weight("on", True, bool), weight("off", False, bool)]
    return make_model(nodes, [tensor("x", [4, 4])], [tensor(name, [4, 4]) for name in "vzde"], weights)


def names(model: onnx.ModelProto) -> set[str]:
    return set(left_to_chance(program_of(model).model))


def test_what_is_drawn_and_what_follows_from_it() -> None:
    assert names(drawing()) == {"n", "v", "d"}


def test_draws_in_a_branch_and_in_a_function_that_another_calls() -> None:
    imports = [helper.make_opsetid("", 18), helper.make_opsetid("mine", 1)]
    inner = helper.make_function("mine", "inner", ["p"], ["o"], [helper.make_node("Bernoulli", ["p"], ["o"])], imports)
    call = helper.make_node("inner", ["p"], ["o"], domain="mine")
    outer = helper.make_function("mine", "outer", ["p"], ["o"], [call], imports)
    branches = {
        f"{name}_branch": helper.make_graph([helper.make_node(op, ["x"], [name])], name, [], [tensor(name, [2])])
        for name, op in (("then", "RandomUniformLike"), ("else", "Abs"))
    }
    nodes = [
        helper.make_node("outer", ["x"], ["a"], domain="mine"),
        helper.make_node("If", ["flag"], ["b"], **branches),
        helper.make_node("Abs", ["x"], ["c"]),
    ]
    inputs = [tensor("x", [2]), tensor("flag", [], TensorProto.BOOL)]
    outputs = [tensor(name, [2]) for name in "abc"]
    model = make_model(nodes, inputs, outputs, domains={"mine": 1}, functions=[outer, inner])
    assert names(model) == {"a", "b"}


@pytest.mark.parametrize("nodes", ["1", "2"])
def test_a_graph_that_draws_builds_and_loads_and_is_verified_as_far_as_that_goes(tmp_path, nodes) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(drawing(), model)
    build(model, tmp_path / "dist", nodes=nodes)
    build(model, tmp_path / "again", nodes=nodes, costs=(str(tmp_path / "dist" / "costs.toml"),))
    manifest, specs = check_whole(tmp_path / "dist")
    assert [spec.files for spec in specs] == [spec.files for spec in check_whole(tmp_path / "again")[1]]
    for entry, spec in zip(manifest.pipeline[0].stages, specs, strict=True):
        directory = tmp_path / "dist" / "bundles" / entry.node
        for _ in range(2):  # what is drawn differs, and that is no mismatch
            load_worker(directory, manifest, entry.stage, context=0, streams=0, threads=1)
        stored = read_npz(directory / str(spec.golden.file), ())
        drawn = {name for name in "vnd" if f"out.{name}" in stored}
        assert not drawn
    told = steps.verify(tmp_path / "dist" / "manifest.toml", model, Silent())
    assert told["identical"] is True
    assert told["random"] == ["d", "v"]
    assert "left to chance, so only their types were compared: d, v" in verify_text(told)
    assert [port.name for port in load_manifest(tmp_path / "dist" / "manifest.toml").program.outputs] == list("vzde")


def test_a_self_check_takes_no_numbers_and_infinities_as_they_are(tmp_path) -> None:
    nodes = [helper.make_node("Log", ["x"], ["a"]), helper.make_node("Abs", ["a"], ["y"])]
    onnx.save(make_model(nodes, [tensor("x", [4])], [tensor("a", [4]), tensor("y", [4])]), tmp_path / "net.onnx")
    np.savez(tmp_path / "in.npz", x=np.array([-1, 0, 1, 2], np.float32))
    build(tmp_path / "net.onnx", tmp_path / "dist", inputs=str(tmp_path / "in.npz"))
    manifest, specs = check_whole(tmp_path / "dist")
    for entry, spec in zip(manifest.pipeline[0].stages, specs, strict=True):
        directory = tmp_path / "dist" / "bundles" / entry.node
        load_worker(directory, manifest, entry.stage, context=0, streams=0, threads=1)
        assert 0 < spec.golden.bound < 1, "of the finite values"
    told = steps.verify(tmp_path / "dist" / "manifest.toml", tmp_path / "net.onnx", Silent())
    assert told["identical"] is True
    assert told["max_abs_diff"] == 0
