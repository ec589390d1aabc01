"""The moves of every rewriting of a graph: what made a value, a weight, a value in the place of another, a name."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir


def made_by(value: ir.Value | None, *kinds: str) -> ir.Node | None:
    """The node that makes ``value``, if it is of one of ``kinds``."""
    node = value.producer() if value is not None else None
    return node if node is not None and node.op_type in kinds else None


def constant(graph: ir.Graph, name: str, array: npt.NDArray[Any] | np.generic) -> ir.Value:
    """A small initializer called ``name``, made once."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.Value(name=name, const_value=ir.Tensor(np.asarray(array), name=name))
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
    graph.register_initializer(value)
    return value


def replace_value(old: ir.Value, new: ir.Value) -> None:
    """Let everything that reads ``old``, graph outputs too, read ``new``, which takes over its name.

    Type and shape it takes over where it has none of its own.
    """
    name, kind, shape = old.name, old.type, old.shape
    old.name = f"{name}/replaced"
    new.name, new.type, new.shape = name, new.type or kind, new.shape or shape
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)


def renamed(tensor: ir.TensorProtocol, name: str) -> ir.TensorProtocol:
    """The same tensor under another name, as lazy as before."""
    shape = ir.Shape(tensor.shape.numpy())
    if isinstance(tensor, ir.ExternalTensor):
        return ir.ExternalTensor(
            tensor.location,
            tensor.offset,
            tensor.length,
            tensor.dtype,
            shape=shape,
            name=name,
            base_dir=tensor.base_dir,
        )
    if tensor.dtype == ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), shape=shape, name=name)
    return ir.LazyTensor(lambda: tensor, dtype=tensor.dtype, shape=shape, name=name)


def free(name: str, taken: set[str | None]) -> str:
    """``name``, or with the first of ``.2``, ``.3`` and so on that is not taken; it is taken from now on."""
    number, found = 1, name
    while found in taken:
        number += 1
        found = f"{name}.{number}"
    taken.add(found)
    return found
