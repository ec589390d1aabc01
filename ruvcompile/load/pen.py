"""What a decoder is drawn with: nodes that are appended one by one, and the initializers that they read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ruvcompile.load.form import EMBED
from ruvcompile.matrices import Floats, FloatTensor

Dims = tuple[int | str, ...]


class Pen:
    """Nodes and initializers of a graph while it is drawn; what draws a node returns the value that goes on."""

    def __init__(self) -> None:
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}

    def node(
        self,
        kind: str,
        name: str,
        inputs: Sequence[ir.Value | None],
        *widths: int,
        attributes: Mapping[str, int | float | str] | None = None,
        more: Sequence[ir.Value] = (),
        output: str | None = None,
    ) -> ir.Value:
        """Append a node that yields ``[batch, sequence, *widths]``, under its own name or as ``output``."""
        result = value_of(output or name.removeprefix("/"), ("batch", "sequence", *widths))
        self.nodes.append(ir.node(kind, inputs, attributes or {}, outputs=[result, *more], name=name))
        return result

    def constant(self, name: str, array: npt.NDArray[Any] | np.generic) -> ir.Value:
        """A small initializer that is no weight."""
        if name not in self.initializers:
            tensor = ir.Tensor(np.asarray(array), name=name)
            value = value_of(name, np.shape(array), tensor.dtype)
            value.const_value = tensor
            self.initializers[name] = value
        return self.initializers[name]

    def weight(
        self,
        name: str,
        shape: tuple[int, ...],
        read: Callable[[], Floats],
        metadata: dict[str, str],
        rows: Callable[[int, int], Floats] | None = None,
    ) -> None:
        """A weight, or a table as large: ``read`` makes it when it is needed, or ``rows`` some of its rows."""
        tensor = FloatTensor(read, shape, name=name, metadata=metadata, rows=rows, transposed=name != EMBED)
        value = value_of(name, shape)
        value.const_value = tensor
        value.metadata_props.update(metadata)
        self.initializers[name] = value


def value_of(name: str, shape: Dims, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    """A value whose type is known; sizes that are open are told by name."""
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def address_of(node: str) -> str:
    """What a node is called as part of a weight's name: ``layers.3.attn.q_proj`` of ``/layers.3/attn/q_proj``."""
    return node.removeprefix("/").replace("/", ".")
