"""Graphs that are no decoders: built in stages, run in this process, equal to the whole model run in one piece."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ruvcompile import compile as steps
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.progress import Silent
from ruvcompile.verify import tensors_agree
from ruvrun.costs import load_costs
from ruvrun.errors import InputError, UsageError
from ruvrun.manifest import Tensor, load_manifest
from ruvrun.pipeline import open_local
from ruvrun.run import read_inputs
from tests.compiler.builds import build, check_whole, plan, snapshot, write_costs
from tests.graphs import (
    PP_OCR,
    SILERO_VAD,
    assert_equal,
    make_model,
    model_path,
    program_of,
    run_original,
    tensor,
    weight,
)


def small(path: Path, rows: int | str = "rows") -> Path:
    """Four nodes, an input that the second stage reads, integers and floats, a result that is made early."""
    random = np.random.default_rng(0)
    model = make_model(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
            helper.make_node("Relu", ["a"], ["early"], name="second"),
            helper.make_node("Add", ["early", "bias"], ["b"], name="third"),
            helper.make_node("MatMul", ["b", "v"], ["y"], name="fourth"),
            helper.make_node("ArgMax", ["y"], ["best"], name="fifth", axis=-1),
        ],
        [tensor("x", [rows, 64]), tensor("bias", [128])],
        [tensor("y", None), tensor("early", None), tensor("best", None, TensorProto.INT64)],
        [weight("w", random.standard_normal((64, 128))), weight("v", random.standard_normal((128, 32)))],
    )
    onnx.save(model, path)
    return path


def same_as_whole(output: Path, model: Path, arrays: dict[str, np.ndarray]) -> None:
    found = open_local(output / "manifest.toml").run(arrays)
    assert_equal(found, run_original(onnx.load(model), arrays))


@pytest.mark.parametrize("nodes", ["1", "2", "3"])
def test_a_small_graph_in_stages(tmp_path, nodes) -> None:
    model = small(tmp_path / "small.onnx")
    result = build(model, tmp_path / "dist", nodes=nodes, shape=("x=3x64",))
    assert result["shape"]["stages"] == int(nodes)
    assert result["predicted_items_per_s"] > 0
    assert "predicted_tokens_per_s" not in result
    assert result["loss"] is None
    manifest, specs = check_whole(tmp_path / "dist")
    assert [each.name for each in manifest.program.inputs] == ["x", "bias"]
    assert [each.name for each in manifest.program.outputs] == ["y", "early", "best"]
    assert sorted(specs[-1].forward) == ["best", "early", "y"]
    assert manifest.space is None
    random = np.random.default_rng(1)
    for rows in (3, 1, 7):  # a row count that was not measured works, since the model leaves it open
        arrays = {"x": random.standard_normal((rows, 64), np.float32), "bias": random.standard_normal(128, np.float32)}
        same_as_whole(tmp_path / "dist", model, arrays)
    verdict = steps.verify(tmp_path / "dist" / "manifest.toml", model, Silent())
    assert verdict["identical"] is True
    assert verdict["vs_source"] is None
    with pytest.raises(UsageError, match="--tokens says nothing"):
        steps.verify(tmp_path / "dist" / "manifest.toml", model, Silent(), 100)


def test_the_manifest_says_what_goes_in_and_comes_out_also_where_the_file_does_not(tmp_path) -> None:
    """Dimensions without a name are not all one size; an output without a shape has the one that was inferred."""
    model = make_model(
        [helper.make_node("Neg", ["x"], ["a"], name="first"), helper.make_node("Exp", ["a"], ["y"], name="second")],
        [tensor("x", [None, None])],
        [tensor("y", None)],
    )
    onnx.save(model, tmp_path / "open.onnx")
    build(tmp_path / "open.onnx", tmp_path / "dist", shape=("x=2x3",))
    program = load_manifest(tmp_path / "dist" / "manifest.toml").program
    assert program.inputs == [Tensor(name="x", dtype="float32", shape=["x.0", "x.1"])]
    assert (program.outputs[0].dtype, len(program.outputs[0].shape)) == ("float32", 2)
    np.savez(tmp_path / "in.npz", x=np.ones((4, 5), np.float32))
    assert read_inputs([tmp_path / "in.npz"], load_manifest(tmp_path / "dist" / "manifest.toml"))["x"].shape == (4, 5)


def test_inputs_come_from_a_file(tmp_path) -> None:
    model = small(tmp_path / "small.onnx")
    arrays = {"x": np.full((5, 64), 0.5, np.float32), "bias": np.ones(128, np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    build(model, tmp_path / "dist", inputs=str(tmp_path / "in.npz"))
    manifest, specs = check_whole(tmp_path / "dist")
    directory = tmp_path / "dist" / "bundles" / manifest.pipeline[0].stages[0].node
    with np.load(directory / specs[0].golden.file) as stored:
        np.testing.assert_array_equal(stored["in.x"], arrays["x"])
    assert manifest.program.samples
    same_as_whole(tmp_path / "dist", model, arrays)


def test_the_same_bytes_from_the_same_costs(tmp_path) -> None:
    model = small(tmp_path / "small.onnx")
    build(model, tmp_path / "dist", shape=("x=3x64",))
    first = snapshot(tmp_path / "dist")
    (tmp_path / "costs.toml").write_bytes(first["costs.toml"])
    build(model, tmp_path / "dist", shape=("x=3x64",), costs=(str(tmp_path / "costs.toml"),))
    assert snapshot(tmp_path / "dist") == first


def test_sizes_that_the_graph_leaves_open_are_part_of_a_cost(tmp_path) -> None:
    """What was measured on three rows says nothing of five thousand: another key, as if of another model."""
    model = small(tmp_path / "small.onnx")
    build(model, tmp_path / "few", shape=("x=3x64",))
    with pytest.raises(InputError, match="is of another model") as error:
        build(model, tmp_path / "many", shape=("x=5000x64",), costs=(str(tmp_path / "few" / "costs.toml"),))
    assert "--shape" in str(error.value.hint)
    build(model, tmp_path / "many", shape=("x=5000x64",))
    few, many = ({row.key: row for row in load_costs(tmp_path / each / "costs.toml").unit} for each in ("few", "many"))
    assert not few.keys() & many.keys()


def test_what_crosses_is_counted_with_the_sizes_that_were_seen(tmp_path) -> None:
    """``early`` (3 x 128) crosses any cut behind the second node; ``bias`` too as long as someone reads it."""
    model = small(tmp_path / "small.onnx")
    result = plan(model, tmp_path, shape=("x=3x64",), cut="b")
    assert result["stages"][0]["cut_bytes"] == 2 * 3 * 128 * 4, "b is read, early is a result"
    result = plan(model, tmp_path, shape=("x=3x64",), cut="early")
    assert result["stages"][0]["cut_bytes"] == 3 * 128 * 4 + 128 * 4


def test_a_slow_link_moves_the_cut(tmp_path) -> None:
    """Behind the last MatMul a quarter as much crosses as before it."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="first"),
        helper.make_node("MatMul", ["a", "u"], ["b"], name="second"),
        helper.make_node("MatMul", ["b", "v"], ["y"], name="third"),
    ]
    weights = [weight("w", np.ones((64, 256))), weight("u", np.ones((256, 8))), weight("v", np.ones((8, 64)))]
    model = tmp_path / "narrow.onnx"
    onnx.save(make_model(nodes, [tensor("x", [100, 64])], [tensor("y", [100, 64])], weights), model)
    build(model, tmp_path / "dist")
    costs = write_costs(tmp_path / "even.toml", load_costs(tmp_path / "dist" / "costs.toml"), {"first": 2.0})
    tables = "".join(f'[[node]]\nname = "{n}"\ntarget = "host"\naddress = "{n}"\nthreads = 1\n' for n in "ab")
    (tmp_path / "fleet.toml").write_text(tables + '[[link]]\nbandwidth = "1Mbit"\n')
    fast = plan(model, tmp_path, costs=(str(costs),), fleet=_one_thread(tmp_path / "local.toml"), stages=2)
    slow = plan(model, tmp_path, costs=(str(costs),), fleet=str(tmp_path / "fleet.toml"), stages=2)
    assert [stage["predicted_ms"] for stage in fast["stages"]] == [2.0, 2.0]
    assert slow["stages"][0]["cut_bytes"] == 100 * 8 * 4
    assert slow["stages"][0]["predicted_ms"] == 3.0
    assert slow["bottleneck_ms"] == pytest.approx(100 * 8 * 4 / 125), "the link is the slowest"


def _one_thread(path: Path) -> str:
    path.write_text("".join(f'[[node]]\nname = "{n}"\ntarget = "host"\nthreads = 1\n' for n in "ab"))
    return str(path)


def test_keys_tell_apart_what_differs_and_nothing_else() -> None:
    def keys(*nodes: onnx.NodeProto, width: int = 4) -> tuple[str, ...]:
        program = program_of(make_model(list(nodes), [tensor("x", [width, 4])], [tensor("y", [width, 4])]))
        types = dict.fromkeys("xay", Type(ir.DataType.FLOAT, (width, 4)))
        return unit_keys(program, program_units(program, types), types)

    relu = helper.make_node("Relu", ["x"], ["a"], name="one")
    (first, second) = keys(relu, helper.make_node("Relu", ["a"], ["y"], name="other"))
    assert first == second, "names do not count"
    assert keys(relu, helper.make_node("Tanh", ["a"], ["y"]))[1] != second
    assert keys(relu, helper.make_node("Relu", ["a"], ["y"]), width=5)[0] != first
    alpha = [keys(relu, helper.make_node("Elu", ["a"], ["y"], alpha=each))[1] for each in (1.0, 2.0)]
    assert alpha[0] != alpha[1], "attributes do"


def test_keys_tell_functions_apart_by_what_is_in_them() -> None:
    """Of one name in two models, or of one name in one: what one costs says nothing of the other."""

    def keys(*operators: str) -> tuple[str, ...]:
        imports = [helper.make_opsetid("", 18)]
        functions, nodes = [], []
        for number, operator in enumerate(operators):
            inner = helper.make_node(operator, ["p"], ["q"])
            functions.append(helper.make_function("d", "f", ["p"], ["q"], [inner], imports, overload=str(number)))
            nodes.append(helper.make_node("f", [f"v{number}"], [f"v{number + 1}"], domain="d", overload=str(number)))
        ends = [tensor("v0", [4, 4])], [tensor(f"v{len(operators)}", [4, 4])]
        program = program_of(make_model(nodes, *ends, domains={"d": 1}, functions=functions))
        types = {f"v{number}": Type(ir.DataType.FLOAT, (4, 4)) for number in range(len(operators) + 1)}
        return unit_keys(program, program_units(program, types), types)

    first, second = keys("Relu", "Tanh")
    assert first != second
    assert keys("Relu") == (first,)
    assert keys("Tanh")[0] != first


def test_a_graph_of_a_name_that_no_address_can_have_is_refused(tmp_path) -> None:
    """A call goes to /v2/models/NAME/infer."""
    with pytest.raises(UsageError) as error:
        build(small(tmp_path / "small.onnx"), tmp_path / "dist", name="some/detector")
    assert error.value.ref == "name-invalid"
    assert not (tmp_path / "dist").exists()


def test_inputs_that_do_not_fit_are_refused(tmp_path) -> None:
    model = small(tmp_path / "small.onnx")
    build(model, tmp_path / "dist", shape=("x=3x64",))
    pipeline = open_local(tmp_path / "dist" / "manifest.toml")
    with pytest.raises(InputError) as error:
        pipeline.run({"x": np.ones((3, 65), np.float32), "bias": np.ones(128, np.float32)})
    assert error.value.ref == "graph-run-failed"


@pytest.mark.parametrize(
    ("staged", "same"),
    [([1.0, 2.0], True), ([1.0, 2.0002], True), ([1.0, 2.001], False), ([1.0], False), ([1.0, math.nan], False)],
)
def test_agreement_is_as_the_contract_says(staged, same) -> None:
    whole = {"y": np.array([1.0, 2.0], np.float32)}
    assert tensors_agree({"y": np.array(staged, np.float32)}, whole)[0] is same


def test_integers_must_be_equal() -> None:
    assert tensors_agree({"y": np.array([1, 3])}, {"y": np.array([1, 2])}) == (False, 1.0)
    assert tensors_agree({"y": np.array([1, 2])}, {"y": np.array([1, 2])}) == (True, 0.0)
    assert tensors_agree({"y": np.array([1, 2], np.int32)}, {"y": np.array([1, 2])})[0] is False


@pytest.mark.model
def test_silero_vad(tmp_path) -> None:
    """State in and out, call by call."""
    model = model_path(SILERO_VAD)
    build(model, tmp_path / "dist")
    manifest = load_manifest(tmp_path / "dist" / "manifest.toml")
    assert len(manifest.program.samples) == 4, "the choices are recorded, and that there is a state"
    assert manifest.program.samples[-1] == "state state: comes out as stateN; hand it in with the next call"
    assert steps.verify(tmp_path / "dist" / "manifest.toml", model, Silent())["identical"] is True
    pipeline, whole = open_local(tmp_path / "dist" / "manifest.toml"), onnx.load(model)
    state, sound = np.zeros((2, 1, 128), np.float32), np.random.default_rng(0).standard_normal((4, 1, 576), np.float32)
    for piece in sound:
        arrays = {"input": piece, "state": state, "sr": np.array(16000, np.int64)}
        found = pipeline.run(arrays)
        assert_equal(found, run_original(whole, arrays))
        state = found["stateN"]


@pytest.mark.model
def test_pp_ocr_detector(tmp_path) -> None:
    """Open shapes: measured at one size, run at another."""
    model = model_path(PP_OCR)
    result = build(model, tmp_path / "dist", shape=("x=1x3x96x160",))
    assert result["stages"][0]["cut_bytes"] > 1000
    assert steps.verify(tmp_path / "dist" / "manifest.toml", model, Silent())["identical"] is True
    for size in ((96, 160), (64, 96)):
        same_as_whole(tmp_path / "dist", model, {"x": np.random.default_rng(0).random((1, 3, *size), np.float32)})
