"""Bring any valid ONNX graph into the one form that the later steps may take for granted.

The rules, in the order in which they are applied:

1. The default domain is written ``""``, never ``ai.onnx``, in the imports of the graph and of every function.
2. A graph input that has a default value (which includes every weight of files older than IR version 4) is a
   weight and no longer an input.
3. A Constant node of the top-level graph becomes an initialiser under the name of its output. Constants inside
   bodies and functions stay: they travel with their node anyway. So do sparse constants.
4. A node none of whose outputs is read or is a graph output is removed; then the nodes that only it kept
   alive; then initialisers that nobody reads, and functions that nobody calls.
5. An initialiser that is also a graph output goes through an Identity that makes the output, under its own
   name; so a graph output is always a graph input or made by a node. A graph input that is also a graph output
   stays as it is: it needs no node at all, only a relay, and both its names are the user's (see ``cuts``).
6. A graph output that is listed twice is listed once.
7. Every node has a name, and no two nodes of the model have the same one: of equal names the first in order
   keeps it, the others get ``.2``, ``.3``; a node without a name is called after its operator and first output.
   Bodies count as part of the model, a function is a scope of its own. Names of *values* are not touched: two
   bodies may well use the same inner names, and each means its own.

Applying the pass twice changes nothing the second time.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.passes.edit import free, renamed
from ruvcompile.passes.extract import functions_of
from ruvcompile.passes.scope import all_nodes, reads
from ruvcompile.program import Program

_CONSTANTS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64}


def canonicalise(program: Program) -> Program:
    """``program`` with its graph in canonical form; the given one is not changed, tensors are shared.

    Raises:
        InputError: no node is left, since every output is an input.
    """
    model = program.model.clone()
    _normalise_imports(model)  # 1
    _defaults_to_weights(model)  # 2
    _constants_to_weights(model.graph)  # 3
    _remove_dead(model)  # 4
    if not len(model.graph) and not any(value.is_initializer() for value in model.graph.outputs):
        raise InputError(
            "model-computes-nothing",
            f"{program.source.path} only hands its inputs through",
            hint="check that it is the right file: there is nothing to divide among nodes",
        )
    _outputs_apart_from_weights(model.graph)  # 5
    _outputs_once(model.graph)  # 6
    _name_nodes(model.graph)  # 7
    for function in model.functions.values():
        _name_nodes(function)
    return replace(program, model=model)


def _normalise_imports(model: ir.Model) -> None:
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        if "ai.onnx" in scope.opset_imports:
            version = scope.opset_imports.pop("ai.onnx")
            scope.opset_imports[""] = max(version, scope.opset_imports.get("", 0))


def _defaults_to_weights(model: ir.Model) -> None:
    kept = [value for value in model.graph.inputs if not value.is_initializer()]
    if len(kept) < len(model.graph.inputs):
        model.graph.inputs[:] = kept
        model.ir_version = max(model.ir_version, 4)  # before 4 every initialiser had to be an input


def _constants_to_weights(graph: ir.Graph) -> None:
    for node in list(graph):
        if node.op_type != "Constant" or node.domain:
            continue
        tensor = _constant(node)
        if tensor is None:
            continue
        output = node.outputs[0]
        weight = ir.Value(
            name=output.name, type=ir.TensorType(tensor.dtype), shape=ir.Shape(tensor.shape.numpy()), const_value=tensor
        )
        tensor.name = output.name
        output.replace_all_uses_with(weight, replace_graph_outputs=True)
        graph.remove(node, safe=True)
        graph.register_initializer(weight)


def _constant(node: ir.Node) -> ir.TensorProtocol | None:
    """The value of a Constant node as a tensor; None for the sparse form."""
    for name, attribute in node.attributes.items():
        if name == "value":
            # A tensor of its own, for it is about to get another name, and the source model shares this one.
            return renamed(attribute.as_tensor(), node.outputs[0].name or "")
        if name in _CONSTANTS:
            return ir.tensor(np.array(attribute.value, dtype=_CONSTANTS[name]))
        if name in ("value_string", "value_strings"):
            text = [attribute.as_string()] if name == "value_string" else attribute.as_strings()
            shape = [] if name == "value_string" else [len(text)]
            return ir.StringTensor([each.encode() for each in text], shape=ir.Shape(shape))
    return None


def _remove_dead(model: ir.Model) -> None:
    graph = model.graph
    alive: set[ir.Value] = set(graph.outputs)
    for node in reversed(list(graph)):
        if alive.isdisjoint(node.outputs):
            # Its bodies' captures would go on counting as uses of what they read.
            for inner in all_nodes([node]):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
            graph.remove(node)
        else:
            alive.update(reads(node))
    for name, value in list(graph.initializers.items()):
        if value not in alive:
            del graph.initializers[name]
    called = {function.identifier() for function in functions_of(model, graph)}
    for key in list(model.functions):
        if key not in called:
            del model.functions[key]


def _outputs_apart_from_weights(graph: ir.Graph) -> None:
    taken = {value.name for node in all_nodes(graph) for value in node.outputs} | set(graph.initializers)
    for output in dict.fromkeys(graph.outputs):
        tensor = output.const_value
        if not output.is_initializer() or tensor is None:
            continue
        name = output.name or ""
        held = renamed(tensor, free(f"{name}/weight", taken))
        weight = ir.Value(name=held.name, type=output.type, shape=output.shape, const_value=held)
        places = [index for index, each in enumerate(graph.outputs) if each is output]
        output.replace_all_uses_with(weight, replace_graph_outputs=True)
        del graph.initializers[name]
        graph.register_initializer(weight)
        node = ir.node("Identity", [weight], name=f"Identity/{name}", num_outputs=1)
        made = node.outputs[0]
        made.name, made.type, made.shape = name, output.type, output.shape
        graph.append(node)
        for index in places:
            graph.outputs[index] = made


def _outputs_once(graph: ir.Graph) -> None:
    once = list(dict.fromkeys(graph.outputs))
    if len(once) < len(graph.outputs):
        graph.outputs[:] = once


def _name_nodes(nodes: Iterable[ir.Node]) -> None:
    every = list(all_nodes(nodes))
    taken: set[str | None] = {node.name for node in every if node.name}
    seen: set[str] = set()
    for node in every:
        if node.name and node.name not in seen:
            seen.add(node.name)
            continue
        first = next((output.name for output in node.outputs if output.name), "")
        node.name = free(node.name or f"{node.op_type}/{first}", taken)
        seen.add(node.name)
