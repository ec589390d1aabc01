"""What ONNX Runtime by itself makes of a case: the very model, one session, no code of ours.

Its Python package takes and gives numpy arrays, lists of them and None. Of the types that numpy lacks it takes and
gives bytes; onnx's own helpers make and read those.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort

from tests.foreign.cases import Case, Value

_NUMPY_KNOWS = frozenset("biufO")


class RefusedError(Exception):
    """ONNX Runtime does not load the model, or does not run it on these inputs."""


def run_plainly(case: Case) -> dict[str, Value]:
    """The outputs of ``case`` by name.

    Raises:
        RefusedError: there are none.
    """
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    try:
        session = ort.InferenceSession(case.model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        return _run(session, case.inputs)
    except Exception as error:  # noqa: BLE001 - its errors share no other base class
        raise RefusedError(str(error).splitlines()[0][:200]) from None


def _run(session: Any, inputs: Mapping[str, Value]) -> dict[str, Value]:
    names = [port.name for port in session.get_outputs()]
    given = {name: _given(value) for name, value in inputs.items()}
    if all(port.type.startswith("tensor(") for port in session.get_outputs()):
        numbers = {port.name: port.type for port in session.get_outputs()}
        if any(_is_rare(kind) for kind in numbers.values()):
            values = session.run_with_ort_values(names, {name: _owned(each) for name, each in given.items()})
            return {name: _taken(value) for name, value in zip(names, values, strict=True)}
    return dict(zip(names, session.run(names, given), strict=True))


def _is_rare(kind: str) -> bool:
    plain = ("float", "double", "float16", "bool", "string")
    return kind.removeprefix("tensor(")[:-1] not in (
        *plain,
        *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)),
    )


def _given(value: Value) -> Any:
    if not isinstance(value, np.ndarray) or (value.dtype.kind in _NUMPY_KNOWS and value.dtype.isbuiltin == 1):
        return value
    proto = onnx.numpy_helper.from_array(value)
    held = ort.OrtValue.ortvalue_from_shape_and_type(list(value.shape), proto.data_type)
    if proto.raw_data:
        ctypes.memmove(held.data_ptr(), proto.raw_data, len(proto.raw_data))
    return held


def _owned(value: Any) -> Any:
    return ort.OrtValue.ortvalue_from_numpy(value) if isinstance(value, np.ndarray) else value


def _taken(value: Any) -> np.ndarray:
    if not _is_rare(value.data_type()):
        return value.numpy()
    size = value.tensor_size_in_bytes()
    raw = ctypes.string_at(value.data_ptr(), size) if size else b""
    return onnx.numpy_helper.to_array(
        onnx.TensorProto(data_type=value.element_type(), dims=value.shape(), raw_data=raw)
    )
