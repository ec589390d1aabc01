"""The few moves that every rule of this lowering needs besides those of any rewriting (``passes/edit``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ruvcompile.passes.edit import constant
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

    def remove(self, *nodes: ir.Node | None) -> None:
        """Remove those nodes whose outputs nobody reads any more."""
        for node in nodes:
            unread = node is not None and not any(out.uses() or out.is_graph_output() for out in node.outputs)
            if node is not None and node.graph is self.graph and unread:
                self.graph.remove(node, safe=True)

    def drop_unread(self) -> None:
        """Drop the initializers that nobody reads any more."""
        for name in [name for name, value in self.graph.initializers.items() if not value.uses()]:
            del self.graph.initializers[name]

    def input(self, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.INT32) -> ir.Value:
        """A further input of the graph."""
        value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
        self.graph.inputs.append(value)
        return value

    def split(
        self, before: ir.Node, stacked: ir.Value, widths: Sequence[int], names: Sequence[str], *, name: str, kind: str
    ) -> list[ir.Value]:
        """The parts of ``stacked`` along its last axis; ``kind`` names their sizes, which equal nodes share."""
        sizes = constant(self.graph, f"{kind}_sizes." + "x".join(map(str, widths)), np.array(widths, np.int64))
        return self.add(before, "Split", [stacked, sizes], names, name=name, domain="", attributes={"axis": -1})


def integer(node: ir.Node, name: str) -> int:
    """An integer attribute; 0 where it is not there."""
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None else 0
