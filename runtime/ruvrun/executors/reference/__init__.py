"""The reference: a decoder stage in canonical form, computed in float64 with numpy.

It answers what the weights of a build mean, whatever a kernel makes of them, and is what ``ruvcompile verify`` holds
unlike back ends against. Nothing is approximated: weights of four and eight bits are taken as the exact numbers that
they stand for, activations are never quantised, and sums are float64. So what is left is some 1e-15 of a value, and
who else is computed in the same call changes no more than that.

Nodes are the operators of ``onnx.reference`` and those of ``operators``. The memory is that of the packed weights,
which are mapped from their files, and of the activations between two readers. State is kept as in ``stateful.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from ruvrun.bundle import StageSpec
from ruvrun.elements import Array
from ruvrun.errors import InputError
from ruvrun.executors.reference.operators import OPERATORS, wide
from ruvrun.executors.stateful import StatefulDecoder


class Port(NamedTuple):
    """An input of the graph."""

    name: str


class ReferenceGraph:
    """A graph that is computed node by node, and forgets what nobody reads any more; to a decoder it is a session."""

    def __init__(self, path: Path) -> None:
        model = onnx.load(path, load_external_data=False)
        graph = model.graph
        self._weights = {each.name: _weight(each, path.parent) for each in graph.initializer}
        self._inputs = [Port(each.name) for each in graph.input if each.name not in self._weights]
        opsets = {each.domain: each.version for each in model.opset_import}
        own = {(kind.op_domain, kind.__name__): kind for kind in OPERATORS}
        self._nodes = []
        for node in graph.node:
            kind = own.get((node.domain, node.op_type))
            new = [kind] if kind is not None else []
            self._nodes.append((node, ReferenceEvaluator(node, opsets=opsets, new_ops=new)))
            if kind is None:
                self._weights |= {name: wide(self._weights[name]) for name in node.input if name in self._weights}
        self._last = {name: number for number, node in enumerate(graph.node) for name in node.input if name}

    def get_inputs(self) -> list[Port]:
        """As a session of ONNX Runtime has it."""
        return self._inputs

    def run(self, outputs: Sequence[str], given: Mapping[str, Array]) -> list[Array]:
        """The values of ``outputs``."""
        known, wanted = {name: wide(array) for name, array in given.items()}, set(outputs)
        for number, (node, evaluator) in enumerate(self._nodes):
            fed = {name: known[name] if name in known else self._weights[name] for name in node.input if name}
            names = [name for name in node.output if name]
            made: Any = evaluator.run(names, fed)  # a list, as it was given arrays
            known |= zip(names, made, strict=True)
            for name in {*node.input, *names}:
                if name not in wanted and self._last.get(name, -1) <= number:
                    known.pop(name, None)
        return [known[name] for name in outputs]


def load_decoder(directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> StatefulDecoder:
    """Load a decoder stage; numpy takes the threads that it likes."""
    del threads
    return StatefulDecoder(ReferenceGraph(directory / spec.model), spec, context=context, slots=slots)


def load_graph(directory: Path, spec: StageSpec, *, threads: int) -> Any:
    """There is none: graphs are compared with the uncut model on their own back end."""
    del directory, threads
    raise InputError("reference-graph", f"{spec.model} is no decoder", hint="the reference runs decoders")


def _weight(tensor: onnx.TensorProto, directory: Path) -> Array:
    """An initializer; one in a file is mapped. onnx's own reader refuses files with a second name (a hard link)."""
    if tensor.data_location != onnx.TensorProto.EXTERNAL:
        return onnx.numpy_helper.to_array(tensor)
    where = {entry.key: entry.value for entry in tensor.external_data}
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    return np.memmap(directory / where["location"], dtype, "r", int(where.get("offset", 0)), tuple(tensor.dims))
