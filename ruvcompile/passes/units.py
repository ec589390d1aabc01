"""The units of a graph: what a plan moves as a whole, with what each reads and makes.

A unit is one node with its bodies, or a group of nodes (see ``groups``). ``units`` lists a graph as units in
one topological order, and notes for every value that must not cross a cut why:

1. only dense tensors cross, of numbers, truth values or texts; no sequences, optionals or complex numbers;
2. a value whose type is not known cannot be described to the stage that receives it;
3. a quantised operator is not separated from its QuantizeLinear and DequantizeLinear: a back end forms its
   integer kernel only where it sees the whole pattern, and on x86 only where no signed 8-bit tensor comes in
   from outside. Inside such a pattern an unsigned 8-bit tensor may cross, and nothing else;
4. nor is a DynamicQuantizeLinear from the sum of products (MatMulInteger, ConvInteger) that it feeds, and that
   sum from its Cast and its scale: they become one kernel too;
5. a large matrix that was dequantised and turned (a quantised embedding that both ends share) does not travel with
   every item. What else is made of weights alone may, where several nodes far apart read it;
6. a tensor of a type that numpy lacks does not cross where a stage may be given texts, sequences or optionals: ONNX
   Runtime gives no such tensor beside those (see ``ruvrun.executors.graph``).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx_ir as ir

from ruvcompile.passes.infer import Inferred, Type, infer
from ruvcompile.passes.scope import all_nodes, is_weight, reads
from ruvrun.elements import ELEMENTS

_NUMPYS = (
    *("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32", "UINT64"),
    *("FLOAT16", "FLOAT", "DOUBLE", "STRING"),
)
_RARE = frozenset(ir.DataType(each.number) for each in ELEMENTS.values())
CARRIED = frozenset(ir.DataType[name] for name in _NUMPYS) | _RARE
"""The element types that a link can carry: numpy's but complex numbers, and those for which ``elements`` has arrays."""

_SUMS = frozenset({"MatMulInteger", "ConvInteger"})
_LARGE = 64 * 1024
"""Bytes above which what is made of a dequantised weight is as good as the weight."""


@dataclass(frozen=True)
class Unit:
    """Nodes that stay together: one node with its bodies, or a group.

    All fields hold names, each once. ``inputs`` are the activations read from outside the unit, by bodies too,
    graph inputs included; ``weights`` the initialisers read; ``outputs`` all values made that someone outside
    the unit reads, or that are graph outputs; those are in ``results`` too. ``refused`` tells, for inputs and
    outputs that must not cross a cut, why. ``relays`` are graph inputs that are graph outputs; the last unit
    has them.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)


def units(model: ir.Model, types: Mapping[str, Type] | None = None) -> tuple[Unit, ...]:
    """The nodes of a canonical ``model``, in topological order, each a unit of its own.

    Args:
        model: not changed. Its own order is kept, except that what depends on weights alone comes where it is
            first read.
        types: types as a run showed them (``whole.observe``); without them a value after an operator of another
            domain is refused at every cut.
    """
    graph = model.graph
    known = _known(model, types or {})
    finals = set(graph.outputs)
    relays = tuple(value.name for value in graph.outputs if value.is_graph_input() and value.name)
    found: list[Unit] = []
    nodes, constant = _ordered(graph)
    plain = not _takes_others(graph, known)
    read_by = [reads(node) for node in nodes]
    read = {value for values in read_by for value in values}
    for number, (node, values) in enumerate(zip(nodes, read_by, strict=True)):
        inputs = [value for value in values if not is_weight(value)]
        outputs = [value for value in node.outputs if value in read or value in finals]
        refused = {
            _name(value): why for value in (*inputs, *outputs) if (why := _refusal(value, known, constant, plain))
        }
        found.append(
            Unit(
                nodes=(node.name or "",),
                inputs=_names(inputs),
                outputs=_names(outputs),
                weights=_names(value for value in values if is_weight(value)),
                results=_names(value for value in outputs if value in finals),
                relays=relays if number == len(nodes) - 1 else (),
                refused=refused,
            )
        )
    return tuple(found)


def _known(model: ir.Model, types: Mapping[str, Type]) -> Inferred:
    """What is known of the values: as seen, where that is all of them, else also as inferred, which takes its time.

    A run does not tell an optional that holds a tensor from the tensor.
    """
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    made = [output for node in model.graph for output in node.outputs]
    seen = all(value.name in types for value in (*model.graph.inputs, *made) if value.name)
    if seen and not any(node.op_type == "Optional" for scope in scopes for node in all_nodes(scope)):
        return Inferred(dict(types), {})
    inferred = infer(model)
    return Inferred({**types, **inferred.types}, inferred.others)


def refusals(units: Sequence[Unit]) -> dict[str, str]:
    """Why values of ``units`` must not cross a cut, by name."""
    return {name: why for unit in units for name, why in unit.refused.items()}


def in_stages(units: Sequence[Unit], order: Sequence[int]) -> tuple[Unit, ...]:
    """The units in another topological ``order``; the last one has what is relayed, as always."""
    relays = tuple(name for unit in units for name in unit.relays)
    found = [replace(units[item], relays=()) for item in order]
    return (*found[:-1], replace(found[-1], relays=relays))


def _takes_others(graph: ir.Graph, known: Inferred) -> bool:
    """Whether a stage may be given what is no tensor of numbers: such an input of the graph, or a text that is read."""
    if any(isinstance(value.type, ir.SequenceType | ir.OptionalType) for value in graph.inputs):
        return True
    texts = {name for name, kind in known.types.items() if kind.dtype == ir.DataType.STRING}
    read = (value for node in graph for value in node.outputs if value.uses())
    return bool(texts) and any(_name(value) in texts for value in (*graph.inputs, *read))


def _refusal(value: ir.Value, known: Inferred, constant: Collection[ir.Node], plain: bool) -> str:
    """Why ``value`` must not cross a cut, in a graph of ``plain`` numbers or another; empty when it may."""
    if other := known.others.get(_name(value)):
        return f"is no tensor but of kind {other}"
    kind = known.types.get(_name(value))
    if kind is None:
        return "is of a type that is not known without running the graph"
    if kind.dtype not in CARRIED:
        return f"is of type {kind.dtype.name.lower()}, which links do not carry"
    if not plain and kind.dtype in _RARE:
        return f"is of type {kind.dtype.name.lower()}, which ONNX Runtime does not give beside texts or sequences"
    maker = value.producer()
    if maker is not None and maker in constant and _made_by(maker, {"DequantizeLinear"}) and _bytes(kind) > _LARGE:
        return "is a weight, dequantised, and too large to travel with every item"
    return _quantisation(value, kind)


def _bytes(kind: Type) -> float:
    """The size of a tensor as far as it is known; 0 where a dimension is open."""
    return kind.dtype.itemsize * math.prod(dim if isinstance(dim, int) else 0 for dim in kind.shape)


def _quantisation(value: ir.Value, kind: Type) -> str:
    """Why a cut at ``value`` would cost a quantised kernel; empty when it would not."""
    producer = value.producer()
    makes = producer.op_type if producer is not None else ""
    if makes == "DequantizeLinear":
        return "would be separated from its DequantizeLinear"
    readers = {node.op_type for node in value.consumers()}
    if producer is not None and "QuantizeLinear" in readers and _made_by(producer, {"DequantizeLinear"}):
        return "would be separated from its QuantizeLinear"
    if makes == "QuantizeLinear" and kind.dtype == ir.DataType.INT8 and "DequantizeLinear" in readers:
        return "is a signed 8-bit tensor, which would lose the quantised kernel behind it"
    if makes == "DynamicQuantizeLinear" and readers & _SUMS:
        return "would be separated from its DynamicQuantizeLinear"
    if producer is not None and (makes in _SUMS or (makes == "Cast" and _made_by(producer, _SUMS))):
        return "is a sum of quantised products, which would be separated from its scale"
    return ""


def _made_by(node: ir.Node, operators: Collection[str]) -> bool:
    """Whether an input of ``node`` is made by one of ``operators``."""
    makers = [value.producer() for value in node.inputs if value is not None]
    return any(maker is not None and maker.op_type in operators for maker in makers)


def _ordered(graph: ir.Graph) -> tuple[list[ir.Node], set[ir.Node]]:
    """The nodes of ``graph`` in its own order, but what depends on weights alone only where it is first read; and that.

    Such a node is as good as a weight (the transpose of a tied embedding, a dequantised matrix): where it stands
    far before its reader, a cut between would send its value with every item.
    """
    live: set[ir.Value] = set(graph.inputs)
    constant: set[ir.Node] = set()
    for node in graph:
        if live.isdisjoint(reads(node)):
            constant.add(node)
        else:
            live.update(node.outputs)
    order: dict[ir.Node, None] = {}
    for node in [*(each for each in graph if each not in constant), *(each for each in graph if each in constant)]:
        stack = [node]
        while stack:
            top = stack[-1]
            waiting = [
                maker
                for value in reads(top)
                if (maker := value.producer()) is not None and maker in constant and maker not in order
            ]
            if waiting:
                stack.extend(waiting)
            else:
                order[stack.pop()] = None
    return list(order), constant


def _names(values: Iterable[ir.Value]) -> tuple[str, ...]:
    return tuple(_name(value) for value in values)


def _name(value: ir.Value) -> str:
    assert value.name is not None
    return value.name
