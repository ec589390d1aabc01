"""Cut a piece out of a model: a new, valid model of some of its nodes.

The piece is self-contained and as small as it can be. It holds:

1. the named nodes, in the order of the model, bodies included;
2. the initialisers that they or their bodies read, and no others; the tensors are shared, so what was lazy
   stays lazy, and a weight that two pieces read is in both;
3. the functions they call, also those called only inside a body or by another function;
4. ``inputs`` and ``outputs`` with their types: the model's own, else inferred, else given by the caller (who
   ran the graph); open dimensions keep their names, and get one where they have none. A size that the model
   states of a value inside, and that does not follow from its inputs, may be an old one, and is left open. What
   only the run tells of a shape is its rank; where a body contradicts even that, which a branch that is not taken
   may do and which nobody notices in the whole graph, nothing is told: the stage would not load;
5. opset imports, IR version, metadata and descriptions of the model.

What is asked for must be closed. A value that is read but neither produced inside nor among ``inputs`` is our
own mistake, and is named. The given model is never changed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.passes.infer import Type, contradicts_itself, follow, infer, named_dims, observed, type_of
from ruvcompile.passes.scope import all_nodes, bodies, is_weight, reads

_NO_TENSORS = (ir.SequenceType, ir.OptionalType)


def extract(
    model: ir.Model,
    node_names: Collection[str],
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str,
    types: Mapping[str, Type] | None = None,
) -> ir.Model:
    """A new model of the nodes called ``node_names``.

    Args:
        model: a canonical model (node names are unique); not changed.
        node_names: the nodes, all of the top-level graph.
        inputs: names of the values that enter, in order: graph inputs, or outputs of nodes outside.
        outputs: names of the values that leave, in order, each the output of a node inside. A tensor that only
            passes through is no business of the stage's graph: the pipeline relays it.
        name: the new graph's name.
        types: types of values as a run showed them (``whole.observe``), for those that cannot be inferred.

    Raises:
        InputError: ``cut-type-unknown`` when the type of an input or output is nowhere to be found.
        ValueError: the piece is not closed, or a name is not in the model; a mistake of the caller.
    """
    graph = model.graph
    wanted = set(node_names)
    nodes = [node for node in graph if node.name in wanted]
    if missing := wanted - {node.name for node in nodes}:
        raise ValueError(f"no node is called {', '.join(sorted(missing))}")
    values = _values_by_name(graph)
    if unknown := [each for each in (*inputs, *outputs) if each not in values]:
        raise ValueError(f"no value is called {', '.join(unknown)}")
    entering = [values[each] for each in inputs]
    leaving = [values[each] for each in outputs]
    weights = _check_closed(nodes, entering, leaving)

    view = ir.GraphView(
        entering,
        leaving,
        nodes=nodes,
        initializers=weights,
        doc_string=graph.doc_string,
        opset_imports=dict(graph.opset_imports),
        name=name,
        metadata_props=dict(graph.metadata_props),
    )
    piece = view.clone()
    guessed = _give_types(model, piece, types or {}, values)
    made = ir.Model(
        piece,
        ir_version=model.ir_version,
        producer_name=model.producer_name,
        producer_version=model.producer_version,
        domain=model.domain,
        model_version=model.model_version,
        doc_string=model.doc_string,
        functions=[function.clone() for function in functions_of(model, nodes)],
        metadata_props=dict(model.metadata_props),
    )
    if guessed and any(_has_inside(model, node) for node in nodes) and contradicts_itself(made):
        for value in guessed:
            value.shape = None
    return made


def functions_of(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Function]:
    """The functions that ``nodes`` call, in bodies and through other functions too, in the model's order."""
    used: set[tuple[str, str, str]] = set()
    waiting = list(nodes)
    while waiting:
        for node in all_nodes([waiting.pop()]):
            key = node.op_identifier()
            if key in model.functions and key not in used:
                used.add(key)
                waiting.extend(model.functions[key])
    return [function for key, function in model.functions.items() if key in used]


def _has_inside(model: ir.Model, node: ir.Node) -> bool:
    """Whether ``node`` has bodies, or calls a function, which may have them."""
    return node.op_identifier() in model.functions or next(bodies(node), None) is not None


def _values_by_name(graph: ir.Graph) -> dict[str, ir.Value]:
    found = {value.name: value for node in graph for value in node.outputs if value.name}
    found.update((value.name, value) for value in graph.inputs if value.name)
    return found


def _check_closed(
    nodes: Sequence[ir.Node], entering: Sequence[ir.Value], leaving: Sequence[ir.Value]
) -> tuple[ir.Value, ...]:
    """The weights the nodes read, in order of first use, once it is sure that nothing else is missing."""
    known = set(entering)
    made = {output for node in nodes for output in node.outputs}
    weights: dict[ir.Value, None] = {}
    for node in nodes:
        for value in reads(node):
            if value in known or value in made:
                continue
            if not is_weight(value):
                raise ValueError(f"the piece is not closed: {node.name} reads {value.name}, which is not an input")
            weights[value] = None
    if twice := [value.name for value in entering if value in made]:
        raise ValueError(f"both an input and made inside: {', '.join(map(str, twice))}")
    if absent := [value.name for value in leaving if value not in made]:
        raise ValueError(f"not made inside, so not an output: {', '.join(map(str, absent))}")
    return tuple(weights)


def _give_types(
    model: ir.Model, piece: ir.Graph, given: Mapping[str, Type], values: Mapping[str, ir.Value]
) -> list[ir.Value]:
    """Give every port its type; the inputs of which only the run tells it are returned."""
    # A sequence or an optional crosses no cut: it is a port of the whole graph, which says itself what it is.
    ports = [value for value in (*piece.inputs, *piece.outputs) if not isinstance(value.type, _NO_TENSORS)]
    known = {value: type_of(value) for value in ports}
    inferred = infer(model).types if None in known.values() else {}
    seen = observed(given)
    guessed = []
    for value, kind in known.items():
        assert value.name is not None
        kind = kind or inferred.get(value.name)
        if kind is not None and given and value.is_graph_input() and values[value.name].producer() is not None:
            kind = _sure(model, value.name, kind, given)
        if kind is None and (kind := seen.get(value.name)) is not None and value.is_graph_input():
            guessed.append(value)
        if kind is None:
            producer = values[value.name].producer()
            raise InputError(
                "cut-type-unknown",
                f"the type of {value.name} is not known, so it cannot cross a cut",
                context=[f"it is made by {producer.op_type} ({producer.name})" if producer else "it is a graph input"],
                hint="cut elsewhere, or give --inputs so that its type can be found by running the graph",
            )
        value.type, value.shape = ir.TensorType(kind.dtype), ir.Shape(named_dims(value.name, kind.shape))
    return guessed


def _sure(model: ir.Model, name: str, stated: Type, given: Mapping[str, Type]) -> Type:
    """``stated`` with the sizes that also follow from the graph's inputs, or that a run shows where those are fixed."""
    if not any(isinstance(size, int) for size in stated.shape):
        return stated
    fixed = all(isinstance(size, int) for value in model.graph.inputs for size in (value.shape or (None,)))
    other = (given if fixed else follow(model)).get(name)
    if other is None or len(other.shape) != len(stated.shape):
        other = Type(stated.dtype, (None,) * len(stated.shape))
    pairs = zip(stated.shape, other.shape, strict=True)
    shape = (one if one == two or not isinstance(one, int) else None if fixed else two for one, two in pairs)
    return Type(stated.dtype, tuple(shape))
