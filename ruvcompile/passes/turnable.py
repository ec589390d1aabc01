"""Let ONNX Runtime turn signed weights of 8 bits into unsigned ones, on the machine that needs it.

On a PC without VNNI the kernels for unsigned activations and signed weights add two products in 16 bits, and what does
not fit is cut off: 255 x 127 + 255 x 127 becomes 32767. Those for unsigned weights are exact, and slower than VNNI's.
So a weight stays signed in the bundle, and a node without VNNI asks ONNX Runtime to turn it when it loads a stage
(``ruvrun.executors.sessions``): 128 more for the weight and for its zero point, which changes no product.

ONNX Runtime gives what it turns the old name with a suffix, and fails where two readers have turned the same weight
or the same zero point: then the whole stage would be loaded as it is. Of some readers it turns none. Hence, of all
operators that multiply or dequantise a constant int8 weight:

1. each has a weight and a zero point that none of the others reads; a copy is the same bytes of the same file;
2. each has a zero point at all, of the shape that its scale has: one number would not do for several channels;
3. where ONNX Runtime would turn it twice, or not at all, the weight is turned here, for all machines: one that is
   dequantised for several readers, each of which gets a DequantizeLinear of its own when the stage is loaded; one that
   a body of an If, Loop or Scan reads; that of a ``QLinearMatMul`` of opset 21 or later.

What is left as it is: functions, which are bodies only when ONNX Runtime has put them in their places; and a weight
beside signed activations, for which no other kernel exists (none of those that do cut anything off).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ruvcompile.passes.edit import free, renamed
from ruvcompile.passes.quantise import MS_DOMAIN
from ruvcompile.passes.scope import all_nodes, is_weight
from ruvcompile.program import Program

_DEQUANTISES = "DequantizeLinear"
_READERS = {
    ("", _DEQUANTISES): ((0, 2),),
    (MS_DOMAIN, _DEQUANTISES): ((0, 2),),
    ("", "QLinearConv"): ((3, 5),),
    ("", "QLinearMatMul"): ((3, 5),),
    ("", "MatMulInteger"): ((1, 3),),
    (MS_DOMAIN, "QGemm"): ((3, 5),),
    (MS_DOMAIN, "DynamicQuantizeMatMul"): ((1, 3),),
    (MS_DOMAIN, "MatMulIntegerToFloat"): ((1, 5),),
    (MS_DOMAIN, "QAttention"): ((1, 7),),
    (MS_DOMAIN, "DynamicQuantizeLSTM"): ((1, 9), (2, 11)),
}
"""Of each operator, which inputs are a weight and its zero point."""

_ROUNDS_ITSELF = frozenset({_DEQUANTISES, "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
"""Readers whose other input is a float."""

_SHIFT = np.uint8(128)


@dataclass(frozen=True)
class _Reading:
    """One operator reads one weight: the places of the weight and of its zero point among its inputs."""

    node: ir.Node
    weight: int
    zero: int

    @property
    def values(self) -> tuple[ir.Value, ir.Value | None]:
        """Weight and zero point, which may be absent."""
        found = self.node.inputs[self.weight]
        assert found is not None
        return found, _input(self.node, self.zero)


def turnable(program: Program) -> Program:
    """``program`` with signed weights that can be turned; itself where nothing is to be done, and never changed."""
    graph = program.model.graph
    if not _unfit(graph):
        return program
    model = program.model.clone()
    graph = model.graph
    rewriting = _Rewriting(graph)
    for reading in list(_readings(graph)):
        if _twice(graph, reading):
            if _turns(reading.node):
                rewriting.turn(reading)
        else:
            rewriting.own(reading)
    return replace(program, model=model)


class _Rewriting:
    """What is made for one graph on the way."""

    def __init__(self, graph: ir.Graph) -> None:
        self._graph = graph
        self._taken = _names(graph)
        self._seen: set[ir.Value] = set()
        self._turned: dict[ir.Value, ir.Value] = {}

    def own(self, reading: _Reading) -> None:
        """Let no other reader have these (rules 1 and 2)."""
        weight, zero = reading.values
        self._give(reading.node, reading.weight, weight)
        if zero is not None:
            self._give(reading.node, reading.zero, zero)
        elif (shape := _zero_shape(reading.node)) is not None:
            tensor = ir.Tensor(np.zeros(shape, np.int8))
            _put(reading.node, reading.zero, self._new(f"{weight.name}/zero", tensor))

    def turn(self, reading: _Reading) -> None:
        """Make weight and zero point unsigned (rule 3)."""
        weight, zero = reading.values
        if zero is None:
            shape = _zero_shape(reading.node)
            if shape is None:
                return
            _put(reading.node, reading.zero, self._new(f"{weight.name}/zero", ir.Tensor(np.full(shape, _SHIFT))))
        else:
            _put(reading.node, reading.zero, self._unsigned(zero))
        _put(reading.node, reading.weight, self._unsigned(weight))
        for value in (weight, zero):
            if value is not None and value.graph is not None and not value.uses() and not value.is_graph_output():
                value.graph.initializers.pop(str(value.name), None)

    def _give(self, node: ir.Node, place: int, value: ir.Value) -> None:
        if value in self._seen:
            assert value.const_value is not None
            _put(node, place, self._new(f"{value.name}/own", renamed(value.const_value, "")))
        self._seen.add(value)

    def _unsigned(self, value: ir.Value) -> ir.Value:
        if value not in self._turned:
            tensor = value.const_value
            assert tensor is not None
            shape = ir.Shape(tensor.shape.numpy())
            lazy = ir.LazyTensor(lambda: _shifted(tensor), dtype=ir.DataType.UINT8, shape=shape)
            self._turned[value] = self._new(f"{value.name}/unsigned", lazy)
        return self._turned[value]

    def _new(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        name = free(name, self._taken)
        tensor.name = name
        value = ir.Value(
            name=name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        self._graph.register_initializer(value)
        return value


def _unfit(graph: ir.Graph) -> bool:
    """Whether anything is to be done."""
    seen: set[ir.Value] = set()
    for reading in _readings(graph):
        if _twice(graph, reading):
            return True
        for value in reading.values:
            if value is None or value in seen:
                return True
            seen.add(value)
    return False


def _readings(graph: ir.Graph) -> Iterator[_Reading]:
    """All that multiply or dequantise a constant int8 weight with a constant zero point or none."""
    for node in all_nodes(graph):
        for weight, zero in _READERS.get((node.domain, node.op_type), ()):
            if _is_signed(_input(node, weight)) and (_input(node, zero) is None or _is_signed(_input(node, zero))):
                yield _Reading(node, weight, zero)


def _twice(graph: ir.Graph, reading: _Reading) -> bool:
    """Whether ONNX Runtime would turn the weight more than once, or not at all."""
    node = reading.node
    if node.graph is not graph:
        return True
    if node.op_type == _DEQUANTISES:
        return len(node.outputs[0].uses()) > 1 or (node.outputs[0].is_graph_output() and bool(node.outputs[0].uses()))
    return node.op_type == "QLinearMatMul" and graph.opset_imports.get("", 0) >= 21


def _turns(node: ir.Node) -> bool:
    """Whether the operator takes an unsigned weight as well: its activations are not signed."""
    if node.op_type in _ROUNDS_ITSELF:
        return True
    return any(value is not None and _is_unsigned(value) for value in node.inputs)


def _is_signed(value: ir.Value | None) -> bool:
    tensor = value.const_value if value is not None and is_weight(value) else None
    return tensor is not None and tensor.dtype == ir.DataType.INT8


def _is_unsigned(value: ir.Value) -> bool:
    maker = value.producer()
    made = maker is not None and maker.op_type == "DynamicQuantizeLinear" and value.index() != 1
    return made or value.dtype == ir.DataType.UINT8


def _zero_shape(node: ir.Node) -> tuple[int, ...] | None:
    """The shape of a zero point: of one dequantised, that of its scale, None where it is not known; else one number."""
    if node.op_type != _DEQUANTISES:
        return ()
    scale = _input(node, 1)
    shape = scale.shape if scale is not None else None
    sizes = None if shape is None else [size for size in shape if isinstance(size, int)]
    return None if shape is None or sizes is None or len(sizes) < len(shape) else tuple(sizes)


def _shifted(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(np.asarray(tensor.numpy().view(np.uint8) ^ _SHIFT))


def _input(node: ir.Node, place: int) -> ir.Value | None:
    return node.inputs[place] if place < len(node.inputs) else None


def _put(node: ir.Node, place: int, value: ir.Value) -> None:
    if place >= len(node.inputs):
        node.resize_inputs(place + 1)
    node.replace_input_with(place, value)


def _names(graph: ir.Graph) -> set[str | None]:
    """All names of values, those of bodies too."""
    graphs = [graph, *graph.subgraphs()]
    made = (value for each in graphs for node in each for value in node.outputs)
    given = (value for each in graphs for value in (*each.inputs, *each.initializers.values()))
    return {value.name for value in (*made, *given)}
