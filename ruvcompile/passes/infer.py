"""Types of the values of a graph, as far as the operators' definitions tell.

onnx's inference wants the whole model as one protobuf, which ends at 2 GB and would read every weight. Only
small constants (shapes, axes, pads) influence types, so all others are left out: they go in as typed inputs.
The given model is not touched: the work is done on a copy whose tensors are shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple
from weakref import WeakKeyDictionary

import onnx
import onnx_ir as ir

SMALL = 1024
"""Bytes up to which an initialiser's values take part in inference."""

TEXT = 16
"""Bytes of a text in a tensor of strings, for plans: nobody knows before it is there."""

_FAILS = (onnx.shape_inference.InferenceError, ValueError, RuntimeError)
Dim = int | str | None


class Type(NamedTuple):
    """Element type and shape of a tensor; a dimension is a size, a name, or None where nothing is known."""

    dtype: ir.DataType
    shape: tuple[Dim, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of such a tensor on a link: half floats go as whole ones, an open dimension counts as 1."""
        each: float = {ir.DataType.STRING: TEXT, ir.DataType.FLOAT16: 4}.get(self.dtype, 0) or self.dtype.itemsize
        return math.ceil(each * math.prod(size if isinstance(size, int) else 1 for size in self.shape))


class Inferred(NamedTuple):
    """What inference found, by value name: the types of tensors, and what the values are that are no tensors."""

    types: dict[str, Type]
    others: dict[str, str]


_found: WeakKeyDictionary[ir.Model, Inferred] = WeakKeyDictionary()
_following: WeakKeyDictionary[ir.Model, Mapping[str, Type]] = WeakKeyDictionary()


def infer(model: ir.Model) -> Inferred:
    """The types of all top-level values of ``model`` that are known or can be inferred.

    A tensor is left out where its element type or its rank stays unknown (after an operator of another domain,
    a Reshape to a computed shape of unknown length). Inference is of the whole graph, and every stage asks: what was
    found is kept as long as the model is, which is not changed any more once it can be cut.
    """
    found = _found.get(model)
    if found is None:
        found = _found[model] = _infer(model)
    return found


def _infer(model: ir.Model) -> Inferred:
    light = _light(model)
    try:
        proto = onnx.shape_inference.infer_shapes(light, check_type=False, strict_mode=False, data_prop=True)
    except _FAILS:
        proto = light
    found = Inferred(declared(model), {})
    _collect(proto, found)
    return found


def follow(model: ir.Model) -> Mapping[str, Type]:
    """The types of the values of ``model`` that follow from its inputs, whatever the file says of values inside.

    What a file says there may be left over from the sizes it was exported with.
    """
    found = _following.get(model)
    if found is None:
        light = _light(model)
        del light.graph.value_info[:]
        for port in light.graph.output:
            if port.type.HasField("tensor_type"):
                port.type.tensor_type.ClearField("shape")
        inferred = Inferred({}, {})
        with suppress(*_FAILS):
            _collect(onnx.shape_inference.infer_shapes(light, strict_mode=False, data_prop=True), inferred)
        found = _following[model] = inferred.types
    return found


def _collect(proto: onnx.ModelProto, found: Inferred) -> None:
    """Add to ``found`` what ``proto`` says of values that it does not have yet."""
    for info in (*proto.graph.value_info, *proto.graph.input, *proto.graph.output):
        kind = info.type.WhichOneof("value")
        if kind != "tensor_type":
            if kind is not None:
                found.others[info.name] = kind.removesuffix("_type").replace("_", " ")
            continue
        tensor = info.type.tensor_type
        if info.name not in found.types and tensor.elem_type and tensor.HasField("shape"):
            found.types[info.name] = Type(ir.DataType(tensor.elem_type), tuple(_dim(dim) for dim in tensor.shape.dim))


def contradicts_itself(model: ir.Model) -> bool:
    """Whether the types that ``model`` states cannot be, in a body or a branch too; what is not known may be."""
    try:
        onnx.shape_inference.infer_shapes(_light(model), check_type=False, strict_mode=True, data_prop=True)
    except _FAILS:
        return True
    return False


def _light(model: ir.Model) -> onnx.ModelProto:
    """``model`` with its large weights as inputs."""
    copy = model.clone()
    graph = copy.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes > SMALL:
            if tensor is not None and value.type is None:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape.numpy())
            del graph.initializers[name]
            if not value.is_graph_input():
                graph.inputs.append(value)
    return ir.to_proto(copy)


def declared(model: ir.Model) -> dict[str, Type]:
    """The types that ``model`` states itself, for top-level values (inputs, weights, node outputs)."""
    graph = model.graph
    values = [*graph.inputs, *graph.initializers.values(), *(out for node in graph for out in node.outputs)]
    return {value.name: known for value in values if value.name and (known := type_of(value)) is not None}


def type_of(value: ir.Value) -> Type | None:
    """The type a value carries, or None where it has none, no shape, or is not a dense tensor."""
    if value.shape is None or not isinstance(value.type, ir.TensorType):
        return None
    dims = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return Type(value.type.dtype, dims)


def spelt(kind: ir.TypeProtocol) -> str:
    """A type as a manifest names it: ``float32``, ``bfloat16``, ``string``, ``optional(seq(int64))``."""
    if isinstance(kind, ir.SequenceType):
        return f"seq({spelt(kind.elem_type)})"
    if isinstance(kind, ir.OptionalType):
        return f"optional({spelt(kind.elem_type)})"
    return "string" if kind.dtype == ir.DataType.STRING else str(kind.dtype.numpy().name)


def observed(seen: Mapping[str, Type]) -> dict[str, Type]:
    """What a run tells about types for other runs.

    It shows sizes, and those hold for that run alone: where inputs are open, or the size of a result depends on the
    values (NonZero, a mask), another run has others. Only the rank is kept.
    """
    return {name: Type(kind.dtype, (None,) * len(kind.shape)) for name, kind in seen.items()}


def named_dims(name: str, shape: tuple[Dim, ...]) -> tuple[int | str, ...]:
    """``shape`` with a name for every dimension that has none: ``<value name>.<axis>``."""
    return tuple(f"{name}.{axis}" if dim is None else dim for axis, dim in enumerate(shape))


def _dim(dim: onnx.TensorShapeProto.Dimension) -> Dim:
    if dim.HasField("dim_value"):
        return int(dim.dim_value)
    return str(dim.dim_param) if dim.dim_param else None
