"""What the graph of an exported decoder asks about shapes, answered from positions alone.

Exporters ask every activation for its shape, to reshape others: thousands of small nodes, each of which ties a later
part of the graph to an earlier one. All of those shapes follow from four numbers: batch, new positions, past
positions, and the model's constants. So:

1. Two inputs that any stage can be given are made the source of all sizes: ``position_ids`` ``[batch, sequence]`` and
   ``attention_mask`` ``[batch, total]``. They are added where the graph has not got them.
2. The graph is run on a few sizes, with the outputs of its ``Shape`` nodes looked at. Where each element of such an
   output is one of batch, sequence, past, total, or a constant, in every run, the node is replaced by that.
3. What is not as simple stays as it is.

The sizes of the runs are told apart: no two of the four numbers are ever equal, and one run is long, so that a size
that is clipped somewhere is seen to be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx_ir as ir

from ruvcompile.passes.state import CACHE_POSITION, IDS, MASK, POSITIONS, Ports
from ruvcompile.whole import open_session, run
from ruvrun.executors import Array

SOURCES = ("batch", "sequence", "past", "total")
_LONG = 1024
_ALONE = frozenset({"GroupQueryAttention"})


@dataclass(frozen=True)
class Sizes:
    """Sizes of one call."""

    batch: int
    sequence: int
    past: int

    @property
    def total(self) -> int:
        """Positions after the call."""
        return self.past + self.sequence


def probes(model: ir.Model, context: int) -> tuple[Sizes, ...]:
    """Sizes of calls that tell the four numbers apart, within ``context`` positions.

    A fused attention of ONNX Runtime takes several new positions of one sequence only; its batch is always one.
    """
    alone = any(node.op_type in _ALONE for node in model.graph)
    short = tuple(
        replace(size, batch=1) if alone else size for size in (Sizes(2, 3, 4), Sizes(1, 5, 2), Sizes(3, 2, 7))
    )
    longest = min(_LONG, context)
    return (*short, Sizes(1, 6, longest - 6)) if longest > max(size.total for size in short) else short


def inputs_for(ports: Ports, sizes: Sizes, *, vocab: int, seed: int = 0) -> dict[str, Array]:
    """Inputs of one call: random tokens, random state, positions that follow it, and nothing masked."""
    rng = np.random.default_rng(seed)
    positions = np.arange(sizes.past, sizes.total, dtype=np.int64)
    arrays: dict[str, Array] = {IDS: rng.integers(0, vocab, (sizes.batch, sizes.sequence)).astype(_dtype(ports.ids))}
    for value in ports.filled:
        made = {
            POSITIONS: np.tile(positions, (sizes.batch, 1)),
            MASK: np.ones((sizes.batch, sizes.total), np.int64),
            CACHE_POSITION: positions,
        }[str(value.name)]
        arrays[str(value.name)] = made.astype(_dtype(value))
    for pair in ports.pairs:
        shape = (sizes.batch, heads_of(pair.past), sizes.past, size_of(pair.past))
        arrays[str(pair.past.name)] = (rng.standard_normal(shape) * 0.5).astype(_dtype(pair.past))
    return arrays


def heads_of(past: ir.Value) -> int:
    """Heads of a state tensor."""
    return _static(past, 1)


def size_of(past: ir.Value) -> int:
    """Head size of a state tensor."""
    return _static(past, 3)


def _static(value: ir.Value, axis: int) -> int:
    assert value.shape is not None and isinstance(value.shape[axis], int), "settled when the decoder was recognised"
    return int(value.shape[axis])  # type: ignore[arg-type]  # as asserted


def settle_shapes(model: ir.Model, ports: Ports, *, vocab: int, context: int) -> None:
    """Apply rule 2 to ``model``, in place; it has both inputs of rule 1."""
    asked = [node for node in model.graph if node.op_type == "Shape" and node.domain == ""]
    asked = [node for node in asked if not _from_source(node)]
    if not asked:
        return
    seen = [_watch(model, asked, inputs_for(ports, size, vocab=vocab)) for size in probes(model, context)]
    made: dict[str, ir.Value] = {}
    for node in asked:
        name = str(node.outputs[0].name)
        found = [values[name] for values in seen]
        answer = _answer(found, probes(model, context))
        if answer is not None:
            _replace(model.graph, node, answer, made)


@dataclass(frozen=True)
class Around:
    """What is known of values around ``Reshape`` and ``Cast`` nodes: shapes that are simple, and which are float32."""

    dims: Mapping[str, tuple[str | int, ...]]
    floats: frozenset[str]


def around(model: ir.Model, ports: Ports, *, vocab: int, context: int) -> Around:
    """Look at what ``Reshape`` nodes read and make, and what ``Cast`` nodes read."""
    nodes = [node for node in model.graph if node.op_type in ("Reshape", "Cast")]
    names = dict.fromkeys(str(value.name) for node in nodes for value in (node.inputs[0], node.outputs[0]) if value)
    fed = {str(value.name) for value in (*model.graph.inputs, *model.graph.initializers.values())}
    wanted = [name for name in names if name not in fed]
    if not wanted:
        return Around({}, frozenset())
    copy = model.clone()
    values = {str(value.name): value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [values[name] for name in wanted]
    session = open_session(copy, optimise=False)
    sizes = probes(model, context)
    seen = [run(session, inputs_for(ports, size, vocab=vocab)) for size in sizes]
    answers = {name: _answer([np.array(arrays[name].shape, np.int64) for arrays in seen], sizes) for name in wanted}
    return Around(
        {name: answer for name, answer in answers.items() if answer is not None},
        frozenset(name for name in wanted if seen[0][name].dtype == np.float32),
    )


def describe(model: ir.Model, ports: Ports, *, vocab: int, context: int) -> None:
    """Give every value of ``model`` its type and, where it is simple, its shape, as runs show them; in place."""
    graph = model.graph
    values = {str(value.name): value for node in graph for value in node.outputs if value.name}
    copy = model.clone()
    copy.graph.outputs[:] = [value for node in copy.graph for value in node.outputs if value.name]
    session = open_session(copy, optimise=False)
    sizes = probes(model, context)
    seen = [run(session, inputs_for(ports, size, vocab=vocab)) for size in sizes]
    for name, value in values.items():
        arrays = [each[name] for each in seen]
        answer = _answer([np.array(array.shape, np.int64) for array in arrays], sizes)
        value.type = ir.TensorType(ir.DataType.from_numpy(arrays[0].dtype))
        if answer is not None:
            value.shape = ir.Shape(answer)


def _watch(model: ir.Model, nodes: list[ir.Node], inputs: Mapping[str, Array]) -> dict[str, Array]:
    copy = model.clone()
    names = [str(node.outputs[0].name) for node in nodes]
    values = {str(value.name): value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [values[name] for name in names]
    return run(open_session(copy, optimise=False), inputs)


def _answer(found: list[Array], sizes: tuple[Sizes, ...]) -> tuple[str | int, ...] | None:
    """For each element of a shape what it is, in all runs; None where that is not one thing, or ranks differ."""
    if len({values.shape for values in found}) > 1:
        return None
    answer: list[str | int] = []
    for column in zip(*(values.tolist() for values in found), strict=True):
        source = next((s for s in SOURCES if all(c == getattr(z, s) for c, z in zip(column, sizes, strict=True))), None)
        if source is None and len(set(column)) > 1:
            return None
        answer.append(source or int(column[0]))
    return tuple(answer)


def _replace(graph: ir.Graph, node: ir.Node, answer: tuple[str | int, ...], made: dict[str, ir.Value]) -> None:
    parts = [_source(graph, each, made) for each in answer]
    old = node.outputs[0]
    new = ir.node("Concat", parts, {"axis": 0}, name=f"sizes/{old.name}", num_outputs=1)
    new.outputs[0].name, new.outputs[0].type, new.outputs[0].shape = f"sizes/{old.name}", old.type, old.shape
    graph.insert_before(node, new)
    ir.convenience.replace_all_uses_with(old, new.outputs[0])
    graph.remove(node, safe=True)


def _source(graph: ir.Graph, what: str | int, made: dict[str, ir.Value]) -> ir.Value:
    """A vector of one element: a size, out of the inputs that hold it, or a constant."""
    name = f"sizes/{what}"
    if name in made:
        return made[name]
    if isinstance(what, int):
        made[name] = constant(graph, name, np.array([what], np.int64))
    elif what == "past":
        total, sequence = (_source(graph, part, made) for part in ("total", "sequence"))
        made[name] = _at_start(graph, "Sub", [total, sequence], name)
    else:
        inputs = {str(value.name): value for value in graph.inputs}
        source, axis = (inputs[MASK], 1) if what == "total" else (inputs[POSITIONS], int(what == "sequence"))
        shape = f"sizes/{source.name}/shape"
        if shape not in made:
            made[shape] = _at_start(graph, "Shape", [source], shape)
        index = constant(graph, f"sizes/at/{axis}", np.array([axis], np.int64))
        made[name] = _at_start(graph, "Gather", [made[shape], index], name, {"axis": 0})
    return made[name]


def _at_start(
    graph: ir.Graph, kind: str, inputs: list[ir.Value], name: str, attributes: Mapping[str, int] | None = None
) -> ir.Value:
    """A node that reads only inputs and nodes made here, put where everything after it may read it."""
    node = ir.node(kind, inputs, dict(attributes or {}), name=name, num_outputs=1)
    node.outputs[0].name = name
    node.outputs[0].type = ir.TensorType(ir.DataType.INT64)
    behind = [value.producer() for value in inputs]
    last = [maker for maker in behind if maker is not None]
    if last:
        graph.insert_after(max(last, key=list(graph).index), node)
    elif len(graph):
        graph.insert_before(graph[0], node)
    return node.outputs[0]


def constant(graph: ir.Graph, name: str, array: Array) -> ir.Value:
    """A small initializer called ``name``, made once."""
    if name in graph.initializers:
        return graph.initializers[name]
    value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
    value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
    graph.register_initializer(value)
    return value


def add_sources(model: ir.Model) -> None:
    """Apply rule 1: give ``model`` the inputs that all sizes come from, where it has not got them."""
    present = {str(value.name) for value in model.graph.inputs}
    for name, shape in ((POSITIONS, ("batch", "sequence")), (MASK, ("batch", "total"))):
        if name not in present:
            value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.INT64))
            model.graph.inputs.append(value)


def _from_source(node: ir.Node) -> bool:
    return node.inputs[0] is not None and node.inputs[0].name in (POSITIONS, MASK)


def _dtype(value: ir.Value) -> Any:
    assert value.dtype is not None
    return value.dtype.numpy()
