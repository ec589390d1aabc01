"""Graphs that are no decoders on OpenVINO: which tensor is which, however its reader simplifies what lies between."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvrun.bundle import NODE
from ruvrun.executors import load_graph
from ruvrun.executors.openvino.forms import on_cpu
from tests.eight_bits import Layer, arrays, graph
from tests.graphs import assert_equal, make_model, program_of, run_original, tensor

X = np.arange(-4, 4, dtype=np.float32).reshape(2, 4)
SHAPE = [2, 4]


def by_another_name() -> onnx.ModelProto:
    """Tensors that only go by other names: an input as an output, an input within, and one output as two."""
    nodes = [
        helper.make_node("Identity", ["x"], ["same"], "same"),
        helper.make_node("Identity", ["x"], ["inside"], "inside"),
        helper.make_node("Relu", ["inside"], ["r"], "relu"),
        helper.make_node("Identity", ["r"], ["y"], "y"),
        helper.make_node("Identity", ["r"], ["z"], "z"),
        helper.make_node("Neg", ["y"], ["n"], "neg"),
    ]
    return make_model(nodes, [tensor("x", SHAPE)], [tensor(name, SHAPE) for name in ("same", "r", "y", "z", "n")])


@pytest.mark.parametrize("backend", ["openvino", "openvino-gpu", "openvino-npu"])
def test_a_tensor_with_several_names_is_given_by_the_one_that_is_asked_for(backend, tmp_path) -> None:
    model = by_another_name()
    program = program_of(model)
    (piece,) = pieces(program, program_units(program), ())
    path: Path = tmp_path / "stage"
    spec = write_stage(program, piece, path, WeightStore(tmp_path / "w"), backend=backend, target="intel-cpu")
    (path / NODE).mkdir()
    for _ in ("compiled", "as it was kept"):
        graph = load_graph(path, on_cpu(spec), threads=1)
        assert_equal(graph.run({"x": X}), run_original(model, {"x": X}))
        graph.shelf.keep()


@pytest.mark.parametrize("form", ["qdq", "qdq gemm", "qdq conv", "qdq to float", "dynamic"])
def test_a_graph_in_8_bits_computes_what_its_numbers_stand_for(form: str, tmp_path: Path) -> None:
    layers = [Layer(form), Layer(form, 1, channels=True)]
    program = program_of(graph(layers))
    (piece,) = pieces(program, program_units(program), ())
    spec = write_stage(program, piece, tmp_path, WeightStore(tmp_path / "w"), backend="openvino", target="x86-64")
    found = load_graph(tmp_path, spec, threads=1).run(arrays())["y"]
    # A sum of floats may fall on the other side of a half, and be the next of 256 numbers.
    np.testing.assert_allclose(found, run_original(graph(layers, unsigned=True), arrays())["y"], atol=0.05)
