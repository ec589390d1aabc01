"""The few moves that every rule of this lowering needs: insert, replace, remove, and ask a node what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ruvcompile.passes.quantise import MS_DOMAIN


@dataclass(frozen=True)
class Edit:
    """A graph under rewriting."""

    graph: ir.Graph

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        names: Sequence[str],
        *,
        name: str,
        domain: str = MS_DOMAIN,
        attributes: Mapping[str, int | float] | None = None,
    ) -> list[ir.Value]:
        """Insert a node before another; its outputs are called ``names`` ("" for one that is left out)."""
        node = ir.node(
            op_type, inputs, attributes=dict(attributes or {}), domain=domain, name=name, num_outputs=len(names)
        )
        for value, called in zip(node.outputs, names, strict=True):
            value.name = called
        self.graph.insert_before(before, node)
        return list(node.outputs)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let everything that reads ``old`` read ``new``, which takes over name and type."""
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.name = f"{old.name}.replaced"
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)

    def remove(self, *nodes: ir.Node | None) -> None:
        """Remove those nodes whose outputs nobody reads any more."""
        for node in nodes:
            unread = node is not None and not any(out.uses() or out.is_graph_output() for out in node.outputs)
            if node is not None and node.graph is self.graph and unread:
                self.graph.remove(node, safe=True)

    def constant(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """A small initializer."""
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.graph.register_initializer(value)
        return value

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.INT32) -> ir.Value:
        """A further input of the graph."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.graph.inputs.append(value)
        return value

    def split(
        self, before: ir.Node, stacked: ir.Value, widths: Sequence[int], names: Sequence[str], *, name: str, kind: str
    ) -> list[ir.Value]:
        """The parts of ``stacked`` along its last axis; ``kind`` names their sizes, which equal nodes share."""
        sizes = self.constant(f"{kind}_sizes." + "x".join(map(str, widths)), np.array(widths, np.int64))
        return self.add(before, "Split", [stacked, sizes], names, name=name, domain="", attributes={"axis": -1})


def made_by(value: ir.Value | None, *op_types: str) -> ir.Node | None:
    """The node that makes ``value``, if it is one of these operators."""
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type in op_types else None


def integer(node: ir.Node, name: str) -> int:
    """An integer attribute; 0 where it is not there."""
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None else 0
