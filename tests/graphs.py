"""Graphs for tests: the real ones in ``.cache/models``, small ones made on the spot, and how a cut one is run."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import TensorProto, helper

from ruvcompile import passes
from ruvcompile.passes.cuts import Unit, ports
from ruvcompile.passes.extract import extract
from ruvcompile.passes.infer import Type
from ruvcompile.program import Program, Source
from ruvcompile.whole import run_whole

MODELS = Path(__file__).parents[1] / ".cache" / "models"
SILERO_VAD = "silero_vad_op18_ifless.onnx"
PP_OCR = "ch_PP-OCRv4_det_infer.onnx"
MAGIKA = "magika_standard_v3_3.onnx"

Array = npt.NDArray[Any]


def model_path(name: str) -> Path:
    """A real model; the test fails, and says how to get it, when it is not there."""
    path = MODELS / name
    if not path.is_file():
        pytest.fail(f"no {path}: run ./tests/run.sh once, it fetches the models that the tests need", pytrace=False)
    return path


def tensor(name: str, shape: Sequence[int | str | None] | None, dtype: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, dtype, shape)


def weight(name: str, array: Any, dtype: Any = np.float32) -> onnx.TensorProto:
    return onnx.numpy_helper.from_array(np.asarray(array, dtype), name)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 18,
    domains: Mapping[str, int] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(list(nodes), "graph", list(inputs), list(outputs), list(weights))
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(*each) for each in (domains or {}).items())]
    return helper.make_model(graph, opset_imports=imports, functions=list(functions), ir_version=10)


def program_of(model: onnx.ModelProto) -> Program:
    """The canonical program of ``model``."""
    return passes.run(raw_program(model))


def raw_program(model: onnx.ModelProto) -> Program:
    return Program("test", ir.from_proto(model), Source("test.onnx", "0" * 64), None)


def run_original(model: onnx.ModelProto, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What ONNX Runtime says of the very file, without node names: it refuses a file where two are the same."""
    model = copy.deepcopy(model)
    _forget_names(model.graph)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # it warns of every weight that is not read
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(arrays)), strict=True))


def _forget_names(graph: onnx.GraphProto) -> None:
    for node in graph.node:
        node.name = ""
        for attribute in node.attribute:
            if attribute.HasField("g"):
                _forget_names(attribute.g)


def stages(
    model: ir.Model, units: Sequence[Unit], cuts: Sequence[int], types: Mapping[str, Type] | None = None
) -> list[ir.Model]:
    """The pieces of ``model`` between ``cuts``; each is a valid ONNX model."""
    borders = [0, *cuts, len(units)]
    found = []
    for start, stop in itertools.pairwise(borders):
        own = ports(units, start, stop)
        names = [name for unit in units[start:stop] for name in unit.nodes]
        piece = extract(model, names, inputs=own.inputs, outputs=own.outputs, name=f"stage {start}", types=types)
        onnx.checker.check_model(ir.to_proto(piece))
        found.append(piece)
    return found


def run_cut(
    model: ir.Model,
    units: Sequence[Unit],
    cuts: Sequence[int],
    arrays: Mapping[str, Array],
    types: Mapping[str, Type] | None = None,
) -> dict[str, Array]:
    """Run the pieces of ``model`` in turn, handing on what a pipeline would hand on and nothing else."""
    pieces = stages(model, units, cuts, types)
    borders = [0, *cuts, len(units)]
    carried = dict(arrays)
    for piece, (start, stop) in zip(pieces, itertools.pairwise(borders), strict=True):
        own = ports(units, start, stop)
        made = run_whole(piece, {name: carried[name] for name in own.inputs}, threads=1) if own.outputs else {}
        carried = {name: {**carried, **made}[name] for name in own.forward}
    return carried


def assert_equal(actual: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Integers equal, floats within what a cut may change: |a-b| <= 1e-5 + 1e-4 |b|."""
    assert set(actual) == set(wanted)
    for name, array in wanted.items():
        assert actual[name].dtype == array.dtype, name
        if array.dtype.kind == "f":
            np.testing.assert_allclose(actual[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
        else:
            np.testing.assert_array_equal(actual[name], array, err_msg=name)
