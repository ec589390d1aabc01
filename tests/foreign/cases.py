"""The node cases that the onnx package generates: models, inputs and what shall come out, as values.

A value is an array (of the ml_dtypes package where numpy lacks the type), a list of values for a sequence, or None for
an optional that is absent. Scalars become arrays without axes, tensors in protobuf arrays.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
from onnx.backend.test.case.node import collect_testcases

Value = Any


@dataclass(frozen=True)
class Case:
    """One case. ``inputs`` and ``wanted`` are by the names of the model's inputs and outputs."""

    name: str
    model: onnx.ModelProto
    inputs: dict[str, Value]
    wanted: dict[str, Value]
    rtol: float
    atol: float


def collect() -> list[Case]:
    """All of them, in the order in which the package makes them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it computes logarithms of 0 and casts infinities
        found = collect_testcases(None)
    return [_case(each) for each in found]


def tenth(cases: Sequence[Case]) -> list[Case]:
    """A fixed tenth, in which every operator that comes often is, and every kind of value."""
    return list(cases[::10])


def _case(given: Any) -> Case:
    ((inputs, wanted),) = given.data_sets
    graph = given.model.graph
    return Case(
        given.name,
        given.model,
        {port.name: _value(each) for port, each in zip(graph.input, inputs, strict=True)},
        {port.name: _value(each) for port, each in zip(graph.output, wanted, strict=True)},
        given.rtol,
        given.atol,
    )


def _value(given: Any) -> Value:
    if given is None:
        return None
    if isinstance(given, list):
        return [_value(each) for each in given]
    return onnx.numpy_helper.to_array(given) if isinstance(given, onnx.TensorProto) else np.asarray(given)


def stored() -> list[Case]:
    """The cases that the package holds as files: models of other tools, most of them of operator sets 6 to 9."""
    folder = Path(onnx.backend.test.__file__).parent / "data"
    return [_stored(path.parent) for path in sorted(folder.glob("*/*/model.onnx"))]


def _stored(folder: Path) -> Case:
    model = onnx.load(folder / "model.onnx")
    weights = {tensor.name for tensor in model.graph.initializer}
    fed = [port for port in model.graph.input if port.name not in weights]
    data = folder / "test_data_set_0"
    inputs = {port.name: _read(data / f"input_{number}.pb", port) for number, port in enumerate(fed)}
    wanted = {port.name: _read(data / f"output_{number}.pb", port) for number, port in enumerate(model.graph.output)}
    return Case(f"{folder.parent.name}/{folder.name}", model, inputs, wanted, 1e-3, 1e-7)


def _read(path: Path, port: onnx.ValueInfoProto) -> Value:
    kind = port.type.WhichOneof("value")
    if kind == "sequence_type":
        return onnx.numpy_helper.to_list(onnx.SequenceProto.FromString(path.read_bytes()))
    if kind == "optional_type":
        return onnx.numpy_helper.to_optional(onnx.OptionalProto.FromString(path.read_bytes()))
    return onnx.numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))
