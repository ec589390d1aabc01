"""Stages of graphs that are no decoders on OpenVINO: named arrays in, named arrays out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.elements import Value
from ruvrun.errors import InputError
from ruvrun.executors.openvino.compiled import Shelf
from ruvrun.executors.openvino.kernels import Ran, kernels
from ruvrun.manifest import Tensor


class OpenVinoGraph:
    """A stage of a graph without state of its own; a ``GraphExecutor``.

    Args:
        compiled: the graph.
        spec: the stage; a tensor that only goes by another name is one port with both names, and this says which count.
        shelf: where it is kept for the next start.
    """

    def __init__(self, compiled: Any, spec: StageSpec, shelf: Shelf) -> None:
        self.shelf = shelf
        self._request = compiled.create_infer_request()
        self._inputs = _by_name(spec.inputs, compiled.inputs)
        self._outputs = _by_name(spec.outputs, compiled.outputs)

    def run(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """Run the stage once."""
        given = {name: tensors[name] for name in self._inputs}
        for name, port in self._inputs.items():
            _check(name, port, given[name])
        try:
            found = self._request.infer(given)
        except RuntimeError as error:
            raise refused(str(error)) from None
        return {name: found[port] for name, port in self._outputs.items()}

    def kernels(self) -> list[Ran]:
        """What ran in the last run, where the stage was opened to tell."""
        return kernels(self._request)


def _by_name(tensors: Sequence[Tensor], ports: Sequence[Any]) -> dict[str, Any]:
    """The port of each tensor; one that the graph does not read has none."""
    ports_of = {name: port for port in ports for name in port.get_names()}
    return {tensor.name: ports_of[tensor.name] for tensor in tensors if tensor.name in ports_of}


def _check(name: str, port: Any, value: Value) -> None:
    """OpenVINO itself casts what is of another type, and computes something of what is of another shape."""
    dtype, shape = port.get_element_type().to_dtype(), port.get_partial_shape()
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        raise refused(f"{name} is no array of {dtype}")
    if not shape.compatible(ov.PartialShape(list(value.shape))):
        raise refused(f"{name} has the shape {list(value.shape)}; the graph takes {shape}")


def refused(why: str) -> InputError:
    """What a person is told where a graph does not take its inputs."""
    return InputError(
        "graph-run-failed", "the graph refused these inputs", context=[why], hint="compare names, types and shapes"
    )


__all__ = ["OpenVinoGraph", "refused"]
