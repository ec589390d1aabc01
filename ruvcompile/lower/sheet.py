"""The sheet of a stage: which nodes of its lowered graph belong to which unit of the program.

Lowering merges, renames and adds nodes. One that still has its name belongs to its unit; in the canonical form of a
decoder, where every name begins with that of its part, one that is called like the nodes of a unit belongs to it, too.
Any other was put between two that are known (a cast at a cut), and belongs to the one before it, or else to the one
behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ruvcompile.lower.weights import size_of
from ruvcompile.passes.pieces import label, unit_of
from ruvcompile.passes.scope import all_bodies
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvrun.profile.sheet import Sheet, SheetNode, SheetUnit


@dataclass(frozen=True)
class Keyed:
    """The units of a program with their keys (``unit_keys``), in the same order."""

    units: Sequence[Unit]
    keys: Sequence[str]


def sheet_of(program: Program, lowered: ir.Model, keyed: Keyed) -> Sheet:
    """The units that ``lowered``, a stage of ``program``, has nodes of, in order."""
    owner = {name: number for number, unit in enumerate(keyed.units) for name in unit.nodes}
    parts: dict[str, int] = {}
    if program.decoder is not None:
        parts = {unit_of(name): number for name, number in owner.items()}
    values = program.model.graph.initializers
    readers = Counter(name for unit in keyed.units for name in set(unit.weights))
    own = [sum(size_of(values[name]) for name in set(unit.weights) if readers[name] == 1) for unit in keyed.units]
    members: dict[int, list[str]] = {}
    for node in lowered.graph:
        number = _unit(node, owner, parts)
        if number is not None:
            members.setdefault(number, []).append(str(node.name))
    return Sheet(
        unit=[
            SheetUnit(
                key=keyed.keys[number],
                label=label(keyed.units[number], decoder=program.decoder is not None),
                nodes=members[number],
                weight_bytes=own[number],
            )
            for number in sorted(members)
        ],
        node=[] if program.decoder is not None else [sheet_node(node) for node in lowered.graph],
        context=program.decoder.context if program.decoder is not None else 0,
        shared_bytes=sum(size_of(values[name]) for name in _shared(keyed, members, readers)),
    )


def _shared(keyed: Keyed, held: Iterable[int], readers: Mapping[str, int]) -> set[str]:
    """Weights that the units ``held`` read, and others, too."""
    return {name for number in held for name in keyed.units[number].weights if readers[name] > 1}


def sheet_node(node: ir.Node) -> SheetNode:
    """What the name of a kernel is traced back by, where the back end makes it of the names of several nodes."""
    first = node.inputs[0] if node.inputs else None
    maker = first.producer() if first is not None else None
    inner = [each for body in all_bodies(node) for each in body]
    return SheetNode(
        name=str(node.name),
        op=node.op_type,
        outputs=[value.name for value in node.outputs if value.name],
        inside=[name for each in inner for name in (each.name, *(value.name for value in each.outputs)) if name],
        source=str(maker.name) if maker is not None else "",
    )


def _unit(node: ir.Node, owner: Mapping[str, int], parts: Mapping[str, int]) -> int | None:
    name = str(node.name)
    if name in owner:
        return owner[name]
    if parts:
        return parts.get(unit_of(name))
    makers = [value.producer() for value in node.inputs if value is not None]
    readers = [use.node for value in node.outputs for use in value.uses()]
    near = [each for each in (*makers, *readers) if each is not None]
    return next((owner[str(each.name)] for each in near if str(each.name) in owner), None)
