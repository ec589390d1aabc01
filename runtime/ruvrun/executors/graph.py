"""Stages of graphs that are no decoders on ONNX Runtime: named values in, named values out.

Arrays of numbers go in and come out as they are. For the element types that numpy lacks the back end has values of its
own, which are filled and read byte by byte (``elements`` says what stands for them on our side).
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import onnxruntime as ort

from ruvrun.elements import ELEMENTS, Array, Element, Value, packed, unpacked
from ruvrun.errors import InputError

# Its own words for some of them.
_WORDS = {"float8_e8m0fnu": "float8e8m0", "float4_e2m1fn": "float4e2m1"}
_ELEMENTS = {f"tensor({_WORDS.get(name, name.replace('_', ''))})": element for name, element in ELEMENTS.items()}


class OnnxGraph:
    """A stage of a graph without state of its own; a ``GraphExecutor``.

    A call is plain arrays in and out. A tensor of a type that numpy lacks goes by way of its bytes; where one comes
    out, everything that goes in must be a value of the back end's own, of which strings and sequences have none.
    """

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]
        self._elements = elements_of(session)

    def run(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """Run the stage once."""
        inputs = {name: tensors[name] for name in self._inputs}
        try:
            results = call(self._session, self._outputs, inputs, self._elements)
        except Exception as error:  # noqa: BLE001 - onnxruntime's errors share no other base class
            raise InputError(
                "graph-run-failed",
                "the graph refused these inputs",
                context=[str(error)],
                hint="compare names, types and shapes",
            ) from None
        return dict(zip(self._outputs, results, strict=True))


@cache
def half_kernels() -> frozenset[tuple[str, str]]:
    """Domain and name of the operators that the back end computes in float16 on a CPU; all others it casts."""
    # Only a build asks, and a package of a machine's own may lack it.
    from onnxruntime.capi.onnxruntime_pybind11_state import get_all_opkernel_def

    return frozenset(
        (each.domain, each.op_name)
        for each in get_all_opkernel_def()
        if each.provider == "CPUExecutionProvider"
        and any("tensor(float16)" in types for types in each.type_constraints.values())
    )


def elements_of(session: Any) -> dict[str, Element]:
    """The inputs and outputs of ``session`` that are of a type numpy lacks."""
    ports = [*session.get_inputs(), *session.get_outputs()]
    return {port.name: _ELEMENTS[port.type] for port in ports if port.type in _ELEMENTS}


def call(
    session: Any, outputs: Sequence[str], inputs: Mapping[str, Value], elements: Mapping[str, Element]
) -> list[Value]:
    """The values of ``outputs``; ``elements`` are ``elements_of(session)``. Raises what the back end raises."""
    if elements.keys().isdisjoint(outputs):
        if elements:
            inputs = {name: to_ort(each, elements[name]) if name in elements else each for name, each in inputs.items()}
        found: list[Value] = session.run(outputs, inputs)
        return found
    given = {name: to_ort(array, elements.get(name)) for name, array in inputs.items()}
    values = session.run_with_ort_values(outputs, given)
    return [_from_ort(value, elements.get(name)) for name, value in zip(outputs, values, strict=True)]


def to_ort(array: Array, element: Element | None) -> Any:
    """The back end's value of an array; one of a type that numpy lacks is filled byte by byte."""
    if element is None:
        return ort.OrtValue.ortvalue_from_numpy(array)
    value = ort.OrtValue.ortvalue_from_shape_and_type(list(array.shape), element.number)
    data = packed(array, element)
    if data:
        ctypes.memmove(value.data_ptr(), data, len(data))
    return value


def _from_ort(value: Any, element: Element | None) -> Array:
    if element is None:
        array: Array = value.numpy()
        return array
    size = value.tensor_size_in_bytes()
    return unpacked(ctypes.string_at(value.data_ptr(), size) if size else b"", tuple(value.shape()), element)
