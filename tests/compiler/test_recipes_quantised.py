"""Quantised graphs in stages: the integer kernels that the whole has, each stage has too."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ruvcompile.errors import FitError
from ruvcompile.passes.cuts import boundaries
from ruvcompile.passes.units import units
from ruvrun.manifest import load_manifest
from ruvrun.pipeline import open_local
from tests.compiler.builds import build, check_whole
from tests.graphs import assert_equal, make_model, program_of, run_original, tensor, weight

SHAPES = {"MatMul": [4, 16], "Conv": [1, 16, 6, 6]}


def quantised(operator: str, activations: type[np.generic], layers: int = 2) -> onnx.ModelProto:
    """x -> Q -> (DQ -> operator(DQ(weight)) -> Q) as often as there are layers -> DQ -> y."""
    random = np.random.default_rng(0)
    shape, zero = SHAPES[operator], 3 if activations is np.int8 else 131
    nodes = [helper.make_node("QuantizeLinear", ["x", "scale", "zero"], ["q0"])]
    weights = [weight("scale", 0.05), weight("zero", zero, activations), weight("none", 0, np.int8)]
    for layer in range(layers):
        kernel = [16, 16] if operator == "MatMul" else [16, 16, 3, 3]
        weights += [
            weight(f"w{layer}", random.integers(-99, 99, kernel), np.int8),
            weight(f"scale{layer}", 0.002 if operator == "MatMul" else 0.0008),
        ]
        nodes += [
            helper.make_node("DequantizeLinear", [f"q{layer}", "scale", "zero"], [f"d{layer}"]),
            helper.make_node("DequantizeLinear", [f"w{layer}", f"scale{layer}", "none"], [f"dw{layer}"]),
            helper.make_node(
                operator,
                [f"d{layer}", f"dw{layer}"],
                [f"m{layer}"],
                **({"pads": [1] * 4} if operator == "Conv" else {}),
            ),
            helper.make_node("QuantizeLinear", [f"m{layer}", "scale", "zero"], [f"q{layer + 1}"]),
        ]
    nodes.append(helper.make_node("DequantizeLinear", [f"q{layers}", "scale", "zero"], ["y"]))
    return make_model(nodes, [tensor("x", shape)], [tensor("y", shape)], weights)


def kernels(model: Path) -> list[str]:
    """The operators that ONNX Runtime makes of a file."""
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(model.with_suffix(".optimised"))
    options.log_severity_level = 4
    onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    return [node.op_type for node in onnx.load(model.with_suffix(".optimised"), load_external_data=False).graph.node]


@pytest.mark.parametrize("operator", SHAPES)
@pytest.mark.parametrize("activations", [np.int8, np.uint8])
def test_a_cut_at_an_8_bit_tensor_keeps_the_kernels_of_both_halves(tmp_path, operator, activations) -> None:
    model = quantised(operator, activations)
    onnx.save(model, tmp_path / "net.onnx")
    result = build(tmp_path / "net.onnx", tmp_path / "dist", cut="q1")
    assert result["stages"][0]["cut_bytes"] == np.prod(SHAPES[operator]), "one byte for each"
    arrays = {"x": np.random.default_rng(1).standard_normal(SHAPES[operator]).astype(np.float32)}
    found, wanted = open_local(tmp_path / "dist" / "manifest.toml").run(arrays), run_original(model, arrays)
    assert np.unique(wanted["y"]).size > 10
    assert_equal(found, wanted)
    manifest, specs = check_whole(tmp_path / "dist")
    for entry, spec in zip(manifest.pipeline[0].stages, specs, strict=True):
        made = kernels(tmp_path / "dist" / "bundles" / entry.node / spec.model)
        assert f"QLinear{operator}" in made
        assert operator not in made


def test_cuts_fall_between_kernels_only() -> None:
    for activations in (np.int8, np.uint8):
        found = units(program_of(quantised("MatMul", activations)).model)
        assert [cut.made for cut in boundaries(found) if cut.legal] == [("q0",), ("q1",), ("q2",)]


def test_numbers_that_leave_the_graph_or_go_elsewhere_stay_signed() -> None:
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["p"]),
        helper.make_node("DequantizeLinear", ["p", "s", "z"], ["u"]),
        helper.make_node("Neg", ["p"], ["v"]),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["o"]),
        helper.make_node("DequantizeLinear", ["o", "s", "other"], ["w"]),
    ]
    outputs = [tensor("q", [3], TensorProto.INT8), tensor("y", [3]), tensor("u", [3]), tensor("w", [3])]
    outputs.append(tensor("v", [3], TensorProto.INT8))
    weights = [weight("s", 0.5), weight("z", 3, np.int8), weight("other", 4, np.int8)]
    model = make_model(nodes, [tensor("x", [3])], outputs, weights)
    program = program_of(model)
    assert sorted(program.model.graph.initializers) == ["other", "s", "z"]
    arrays = {"x": np.array([-900, 0.3, 900], np.float32)}
    assert_equal(run_original(ir.to_proto(program.model), arrays), run_original(model, arrays))


def test_what_is_quantised_on_the_way_stays_with_its_product(tmp_path) -> None:
    """DynamicQuantizeLinear -> MatMulInteger -> Cast -> Mul is one kernel."""
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("DynamicQuantizeLinear", ["a"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", "wz"], ["sum"]),
        helper.make_node("Cast", ["sum"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Mul", ["f", "scale"], ["m"]),
        helper.make_node("Exp", ["m"], ["y"]),
    ]
    weights = [
        weight("w", np.random.default_rng(0).integers(-99, 99, (16, 16)), np.int8),
        *(weight("wz", 0, np.int8), weight("ws", 0.001)),
    ]
    model = make_model(nodes, [tensor("x", [4, 16])], [tensor("y", [4, 16])], weights)
    found = units(program_of(model).model)
    assert [cut.made for cut in boundaries(found) if cut.legal] == [("a",), ("m",)]
    onnx.save(model, tmp_path / "net.onnx")
    build(tmp_path / "net.onnx", tmp_path / "dist", nodes="3", cut="a,m")
    arrays = {"x": np.random.default_rng(1).standard_normal((4, 16)).astype(np.float32)}
    assert_equal(open_local(tmp_path / "dist" / "manifest.toml").run(arrays), run_original(model, arrays))
    (whole,) = (each for each in kernels(tmp_path / "net.onnx") if each.startswith("DynamicQuantize"))
    node = load_manifest(tmp_path / "dist" / "manifest.toml").pipeline[0].stages[1].node
    assert whole in kernels(next((tmp_path / "dist" / "bundles" / node).glob("*.onnx")))


def test_a_dequantised_weight_that_both_ends_share_holds_them_together_and_says_so(tmp_path) -> None:
    """A copy for each would change the result: with a matrix that one node alone reads ONNX Runtime multiplies in
    integers, with a shared one in floats. And the whole matrix does not travel with every item either."""
    rows, width = 500, 64
    nodes = [
        helper.make_node("Neg", ["x"], ["n"], name="before"),
        helper.make_node("Cast", ["n"], ["ids"], to=TensorProto.INT64, name="ids"),
        helper.make_node("DequantizeLinear", ["table", "s", "z"], ["rows"], name="dq"),
        helper.make_node("Gather", ["rows", "ids"], ["h"], name="look up"),
        helper.make_node("Relu", ["h"], ["g"], name="relu"),
        helper.make_node("Transpose", ["rows"], ["turned"], name="turn", perm=[1, 0]),
        helper.make_node("MatMul", ["g", "turned"], ["k"], name="product"),
        helper.make_node("Tanh", ["k"], ["y"], name="end"),
    ]
    table = weight("table", np.random.default_rng(0).integers(-99, 99, (rows, width)), np.int8)
    weights = [table, weight("s", 0.01), weight("z", 0, np.int8)]
    model = make_model(nodes, [tensor("x", [4])], [tensor("y", [4, rows])], weights)
    onnx.save(model, tmp_path / "net.onnx")
    arrays = {"x": np.array([0, -3, -499, -7], np.float32)}
    np.savez(tmp_path / "in.npz", **arrays)
    with pytest.raises(FitError) as caught:
        build(tmp_path / "net.onnx", tmp_path / "dist", nodes="5", inputs=str(tmp_path / "in.npz"))
    assert caught.value.message == "this model can be cut into at most 4 stages, not 5"
    assert caught.value.context[0].startswith("dq, look up, relu, turn, product stay together: rows would be separated")
    build(tmp_path / "net.onnx", tmp_path / "dist", inputs=str(tmp_path / "in.npz"))
    assert_equal(open_local(tmp_path / "dist" / "manifest.toml").run(arrays), run_original(model, arrays))
