"""Take data that lies in files into the graph itself.

A model file may keep any tensor in a data file beside it, however small it is and wherever it stands: weights of
the graph, weights and constants inside bodies and functions. What is written out anew must not go on pointing at
the files it was read from.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any

import onnx_ir as ir

from ruvcompile.passes.scope import all_nodes


def inline(model: ir.Model, kept: Container[ir.Value] = ()) -> None:
    """Read every external tensor of ``model`` into it, those of the initializers ``kept`` excepted.

    Args:
        model: changed; a clone shares tensors with its original but not the places that hold them.
        kept: initializers whose data stays in its file.
    """
    for value in _stored_weights(model):
        if isinstance(value.const_value, ir.ExternalTensor) and value not in kept:
            value.const_value = _in_memory(value.const_value)
    for node, attribute in list(_stored_constants(model)):
        node.attributes[attribute.name] = ir.AttrTensor(attribute.name, _in_memory(attribute.value))


def has_external(model: ir.Model) -> bool:
    """Whether any tensor of ``model`` lies in a file of its own."""
    return next(_stored_weights(model), None) is not None or next(_stored_constants(model), None) is not None


def _stored_weights(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (*model.graphs(), *(function.graph for function in model.functions.values())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value


def _stored_constants(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for node in (node for scope in scopes for node in all_nodes(scope)):
        for attribute in node.attributes.values():
            if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                yield node, attribute


def _in_memory(tensor: ir.ExternalTensor) -> ir.Tensor[Any]:
    return ir.Tensor(tensor.numpy().copy(), dtype=tensor.dtype, name=tensor.name)
