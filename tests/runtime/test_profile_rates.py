"""Figures of a machine: the models they are measured with are what they should be, and every figure is there."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from ruvrun.errors import InputError
from ruvrun.executors.openvino.cpu import load_graph as openvino_graph
from ruvrun.executors.sessions import open_session
from ruvrun.profile import rates
from ruvrun.profile.onnx_bytes import FLOAT, Node, Weight, model_bytes
from ruvrun.profile.rates import Size, measure_rates

TINY = Size(weights=1 << 18, width=64, rows=4, nodes=5, seconds=0.0, runs=2)
ONE = replace(TINY, weights=1)  # a single product
UNITS = {
    "memory_bandwidth": "B/s", "int4_matvec": "B/s", "int4_matmat": "FLOP/s", "int8_matvec": "B/s",
    "int8_matmat": "FLOP/s", "f32_matmat": "FLOP/s", "node_overhead": "s",
}  # fmt: skip


@pytest.mark.parametrize("backend", rates.RATED)
def test_every_figure_is_there_and_told(backend: str) -> None:
    told: list[tuple[str, int, int]] = []
    found = measure_rates("pi5", backend, 2, size=TINY, tell=lambda *what: told.append(what))
    assert {rate.name: rate.unit for rate in found} == UNITS
    assert {(rate.target, rate.backend, rate.threads) for rate in found} == {("pi5", backend, 2)}
    assert all(rate.value > 0 and rate.spread >= 0 for rate in found)
    assert told == [("rates", number, 7) for number in range(1, 8)]


def test_a_back_end_without_such_models_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        measure_rates("host", "hailo", 1)
    assert caught.value.ref == "rates-unknown"


@pytest.mark.parametrize("bits", [4, 8])
def test_the_quantised_model_is_as_decoders_are_and_no_weights_are_alike(tmp_path: Path, bits: int) -> None:
    """Equal ones are kept once by the back end, and then fit into the cache."""
    _, stored, flops = rates._quantised(tmp_path / "m.onnx", bits, 1, TINY)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model)
    count = len(model.graph.node)
    assert count * (64 * 64 * bits // 8 + 64 * 2 * 4) == stored <= TINY.weights
    assert flops == count * 2 * 64 * 64
    for node in model.graph.node:
        attributes = {attribute.name: attribute.i for attribute in node.attribute}
        assert (node.op_type, node.domain) == ("MatMulNBits", "com.microsoft")
        assert attributes == {"K": 64, "N": 64, "bits": bits, "block_size": 32, "accuracy_level": 4}
    packed = [
        numpy_helper.to_array(each).tobytes() for each in model.graph.initializer if each.data_type == rates.UINT8
    ]
    assert len(set(packed)) == count
    assert stored == (tmp_path / "m.bin").stat().st_size


def test_openvino_computes_the_same_and_folds_no_small_node_away(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    for name, make in (("f", rates._floats), ("q", partial(rates._quantised, bits=4))):
        (one, *_), (other, *_) = (
            make(path=tmp_path / f"{name}.onnx", threads=1, size=ONE, backend=backend) for backend in rates.RATED
        )
        (wanted,), (found,) = one.run(None, {"v0": x}), other.run(None, {"v0": x})
        np.testing.assert_allclose(found, wanted, atol=0.03 * np.abs(wanted).max())
    spec = rates._small(tmp_path / "s.onnx", 1, TINY, "openvino")._spec
    counted = openvino_graph(tmp_path, spec, threads=1, profile=True)
    names = set()
    for _ in range(50):  # one that takes less than a microsecond is told in some runs only
        counted.run({"v0": np.zeros((1, 8), np.float32)})
        names |= {ran.name for ran in counted.kernels() if ran.kind == "Softmax"}
    assert len(names) == TINY.nodes


def test_the_float_model_computes_its_products(tmp_path: Path) -> None:
    session, flops = rates._floats(tmp_path / "m.onnx", 1, TINY)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    x = np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)
    wanted = x
    for weight in model.graph.initializer:
        wanted = wanted @ numpy_helper.to_array(weight)
    (found,) = session.run(None, {"v0": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)
    assert flops == 2 * 64 * 64 * len(model.graph.initializer)


def test_no_small_node_is_folded_away(tmp_path: Path) -> None:
    rates._small(tmp_path / "m.onnx", 1, TINY)
    session = open_session(tmp_path / "m.onnx", threads=1, profile=tmp_path / "profile")
    session.run(None, {"v0": np.zeros((1, 8), np.float32)})
    assert Path(session.end_profiling()).read_text().count("_kernel_time") == TINY.nodes
    (found,) = session.run(None, {"v0": np.zeros((1, 8), np.float32)})
    assert (found == TINY.nodes).all()


def test_bytes_are_a_model(tmp_path: Path) -> None:
    """Numbers of more than seven bits, names beyond ASCII, several inputs, open and fixed dimensions."""
    (tmp_path / "w.bin").write_bytes(bytes(64) + np.ones(3000, np.float32).tobytes())
    nodes = [Node("Add", ["é", "w"], "sum"), Node("Softmax", ["sum"], "y", attributes={"axis": 1})]
    weights = [Weight("w", FLOAT, [3000], "w.bin", 64, 12000)]
    data = model_bytes(nodes, {"é": ("n", 3000)}, {"y": (2, 3000)}, weights)
    (tmp_path / "m.onnx").write_bytes(data)
    model = onnx.load(tmp_path / "m.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [node.name for node in model.graph.node] == ["Add_0", "Softmax_1"]
    assert [dim.dim_param or dim.dim_value for dim in model.graph.input[0].type.tensor_type.shape.dim] == ["n", 3000]
    session = open_session(tmp_path / "m.onnx", threads=1)
    (found,) = session.run(None, {"é": np.zeros((2, 3000), np.float32)})
    np.testing.assert_allclose(found, 1 / 3000, rtol=1e-5)
