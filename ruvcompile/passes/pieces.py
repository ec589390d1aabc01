"""From a program to the units it may be cut between, and from chosen cuts to pieces.

A decoder is cut between attention and MLP parts of layers, never inside one: within a part the back ends want
several nodes together, and its key/value state belongs to it. Any other graph is cut between its nodes, those that
pass what must not cross a cut to each other excepted.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise

import onnx_ir as ir

from ruvcompile.passes.cuts import Boundary, ports
from ruvcompile.passes.extract import functions_of
from ruvcompile.passes.groups import group, together
from ruvcompile.passes.infer import Type
from ruvcompile.passes.scope import all_nodes, reads
from ruvcompile.passes.units import Unit, units
from ruvcompile.program import Piece, Program


def program_units(program: Program, types: Mapping[str, Type] | None = None) -> tuple[Unit, ...]:
    """The units of a program, in the order of computation."""
    found = units(program.model, types)
    return group(found, unit_of) if program.decoder is not None else together(found)


def unit_of(node_name: str) -> str:
    """The unit a canonical decoder node belongs to: ``embed``, ``layers.3.attn``, ``layers.3.mlp`` or ``head``."""
    first, *rest = node_name.strip("/").split("/")
    if not first.startswith("layers."):
        return "embed" if first == "embed" else "head"
    return f"{first}.{rest[0].removesuffix('_norm')}"


def wire(program: Program, border: Boundary) -> tuple[str, ...]:
    """The tensors that travel over a cut, each once; key/value state and positions of a decoder stay where they are."""
    hidden = stays(program)
    return tuple(name for name in border.tensors if name not in hidden)


def pieces(program: Program, parts: Sequence[Unit], cuts: Sequence[int]) -> tuple[Piece, ...]:
    """The stages that ``cuts`` make: cut ``k`` lies between the first ``k`` units and the rest."""
    hidden = stays(program)
    bounds = [0, *cuts, len(parts)]
    found = []
    for start, stop in pairwise(bounds):
        port = ports(parts, start, stop)
        inputs, outputs, forward = (
            tuple(name for name in names if name not in hidden) for names in (port.inputs, port.outputs, port.forward)
        )
        nodes = tuple(name for unit in parts[start:stop] for name in unit.nodes)
        found.append(Piece(nodes, inputs, outputs, forward, first=start == 0, last=stop == len(parts)))
    return tuple(found)


def unit_keys(program: Program, parts: Sequence[Unit], types: Mapping[str, Type] | None = None) -> tuple[str, ...]:
    """What each unit computes, as a hash: operators, functions, attributes, types, shapes; not names, not weights.

    Args:
        types: as observed, for values whose shapes the graph leaves open: another size is another computation.
    """
    owner = {name: number for number, part in enumerate(parts) for name in part.nodes}
    contents: list[list[object]] = [_computed_with(program, part) for part in parts]
    digests = {function: _digest(function) for function in program.model.functions.values()}
    for node in program.model.graph:
        for inner in all_nodes([node]):
            attributes = {
                name: str(attribute.value)
                for name, attribute in inner.attributes.items()
                if attribute.type not in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS)
            }
            values = [*inner.inputs, *reads(inner), *inner.outputs]
            shapes = [None if value is None else _type(value, types or {}) for value in values]
            contents[owner[str(node.name)]].append([inner.op_type, inner.domain, attributes, shapes])
        if digests:
            called = functions_of(program.model, [node])
            contents[owner[str(node.name)]].extend(digests[function] for function in called)
    dumped = (json.dumps(content, sort_keys=True) for content in contents)
    return tuple(hashlib.sha256(text.encode()).hexdigest()[:32] for text in dumped)


def _computed_with(program: Program, part: Unit) -> list[object]:
    """Types of numbers that no attribute tells, where they are not those of every table before they could be chosen."""
    asked = [] if program.precision == "f32" else [program.precision]
    has_state = any(name.startswith(("past_key.", "past_value.")) for name in part.inputs)
    return [*asked, f"kv {program.kv_type}"] if has_state and program.kv_type not in ("", "f32") else [*asked]


def _digest(function: ir.Function) -> str:
    return hashlib.sha256(ir.to_proto(function).SerializeToString(deterministic=True)).hexdigest()


def _type(value: ir.Value, types: Mapping[str, Type]) -> str:
    seen = types.get(value.name or "")
    return f"Tensor({seen.dtype}){list(seen.shape)}" if seen else f"{value.type}{value.shape}"


def label(part: Unit, *, decoder: bool) -> str:
    """A unit's name for people; layers of a decoder that are of one kind share it."""
    name = unit_of(part.nodes[0]) if decoder else part.nodes[0]
    head, dot, rest = name.partition(".")
    return f"{head}.*.{rest.split('.')[-1]}" if head == "layers" and dot else name


def stays(program: Program) -> frozenset[str]:
    """Names that never travel: a decoder's past, present and positions."""
    if program.decoder is None:
        return frozenset()
    graph = program.model.graph
    names = {str(value.name) for value in (*graph.inputs, *graph.outputs)}
    return frozenset(names - {"input_ids", "logits"})
