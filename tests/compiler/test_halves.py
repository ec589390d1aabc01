"""Half floats: a cut rounds nothing that the back end would not have rounded."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from ruvcompile import compile as steps
from ruvcompile.progress import Silent
from ruvrun.pipeline import open_local
from tests.compiler.builds import build, check_whole
from tests.graphs import make_model, run_original, tensor, weight

HALF = TensorProto.FLOAT16


@pytest.fixture
def model(tmp_path) -> onnx.ModelProto:
    """Products of half floats, one of which is an output too, and a branch that reads one from outside."""
    random = np.random.default_rng(0)
    then = helper.make_graph([helper.make_node("MatMul", ["b", "v"], ["t"])], "then", [], [tensor("t", None, HALF)])
    other = helper.make_graph([helper.make_node("Neg", ["b"], ["e"])], "else", [], [tensor("e", None, HALF)])
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="one"),
        helper.make_node("MatMul", ["a", "w"], ["b"], name="two"),
        helper.make_node("If", ["flag"], ["c"], name="three", then_branch=then, else_branch=other),
        helper.make_node("Cast", ["c"], ["y"], name="four", to=TensorProto.FLOAT),
    ]
    weights = [weight(name, random.standard_normal((64, 64)), np.float16) for name in "wv"]
    weights.append(weight("flag", True, bool))
    made = make_model(nodes, [tensor("x", [4, 64], HALF)], [tensor("y", None), tensor("a", None, HALF)], weights)
    onnx.save(made, tmp_path / "net.onnx")
    return made


@pytest.mark.parametrize("cut", ["b", "c"])
def test_stages_are_the_whole_to_the_last_bit(tmp_path, model, cut) -> None:
    result = build(tmp_path / "net.onnx", tmp_path / "dist", cut=cut)
    arrays = {"x": np.random.default_rng(1).standard_normal((4, 64)).astype(np.float16)}
    found, wanted = open_local(tmp_path / "dist" / "manifest.toml").run(arrays), run_original(model, arrays)
    for name, array in wanted.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    assert steps.verify(tmp_path / "dist" / "manifest.toml", tmp_path / "net.onnx", Silent())["max_abs_diff"] == 0
    manifest, specs = check_whole(tmp_path / "dist")
    sent = {tensor.name: tensor.dtype for tensor in specs[1].inputs}
    assert sent == {cut: "float32"}
    assert result["stages"][0]["cut_bytes"] == 4 * 64 * (4 + 4)
    assert {port.name: port.dtype for port in manifest.program.outputs} == {"y": "float32", "a": "float16"}
