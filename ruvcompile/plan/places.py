"""Where a model may be cut, told to people: how many places there are, what holds it together between them, and
which of them ``--cut`` means.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence

import onnx_ir as ir

from ruvcompile.errors import FitError, UsageError, did_you_mean
from ruvcompile.passes.cuts import Boundary, Unit
from ruvcompile.passes.scope import all_bodies, is_weight
from ruvcompile.passes.units import refusals

_TOLD = 3
_LISTED = 6
_MOST_CHOICES = 10_000


def check_stages(units: Sequence[Unit], edges: Sequence[Boundary], stages: int) -> None:
    """Refuse more stages than there are places to cut.

    Raises:
        FitError: ``stages-over-units``, with the nodes that stay together, and why.
    """
    most = 1 + sum(edge.legal for edge in edges)
    if stages > most:
        raise FitError(
            "stages-over-units",
            f"this model can be cut into at most {most} stage{'s' if most > 1 else ''}, not {stages}",
            context=held_together(units, edges),
            hint=f"--stages {most}, or leave it to the plan",
        )


def held_together(units: Sequence[Unit], edges: Sequence[Boundary]) -> list[str]:
    """The largest stretches of ``units`` that no cut divides, a sentence each."""
    legal = [0, *(number for number, edge in enumerate(edges, 1) if edge.legal), len(units)]
    stretches = [(start, stop) for start, stop in itertools.pairwise(legal)]
    if len(stretches) == len(units) == sum(len(unit.nodes) for unit in units):
        names = _listed([unit.nodes[0] for unit in units])
        return [f"each of its nodes stays whole, with all that is inside it: {names}"]
    stretches.sort(key=lambda span: -sum(len(unit.nodes) for unit in units[span[0] : span[1]]))
    return [_stretch(units, edges, *span) for span in stretches[:_TOLD]]


def named_cuts(
    graph: ir.Graph,
    units: Sequence[Unit],
    edges: Sequence[Boundary],
    wires: Sequence[Collection[str]],
    named: Collection[str],
    wanted: int,
) -> list[int]:
    """The ``wanted`` cuts that the tensors ``named`` make: what is made before each and read behind it is among them.

    Args:
        graph: of the program.
        units: of which the cuts are.
        edges: all cuts.
        wires: what travels over each.
        named: by ``--cut``.
        wanted: how many cuts there have to be.

    Returns:
        Sizes of the prefixes. Of cuts that the same tensors cross the first legal one is taken.

    Raises:
        UsageError: a name is no tensor that crosses a cut, a cut is not legal, or the names are those of more or
            fewer cuts.
    """
    known = {name for wire in wires for name in wire}
    refused = refusals(units)
    for name in sorted(set(named) - known):
        if name in refused:
            both = next(unit for unit in units if name in unit.refused)
            context = [f"{_listed(both.nodes)} stay together"]
            told = f"a cut there is not possible: {name} {refused[name]}"
            raise UsageError("cut-illegal", told, context=context, hint="cut elsewhere")
        why, hint = _no_crossing(graph, name), did_you_mean(name, known)
        raise UsageError("cut-unknown", f"no tensor {name!r} crosses a possible cut", context=why, hint=hint)
    places: dict[frozenset[str], list[int]] = {}
    for number, (edge, wire) in enumerate(zip(edges, wires, strict=True), 1):
        if made := frozenset(edge.made) & frozenset(wire):
            places.setdefault(made, []).append(number)
    whole = {made: numbers for made, numbers in places.items() if made <= set(named)}
    chosen = _cover(list(whole), frozenset(named), wanted)
    if chosen is None:
        raise UsageError(
            "cut-count",
            f"--cut names {len(whole)} cut{'s' if len(whole) != 1 else ''}, {wanted + 1} stages need {wanted}",
            context=_also_crossing(places, frozenset(named)),
            hint="name all tensors that cross each cut, and no others",
        )
    cuts = []
    for made in chosen:
        legal = [number for number in whole[made] if edges[number - 1].legal]
        if not legal:
            reason = edges[whole[made][0] - 1].reason
            raise UsageError("cut-illegal", f"a cut there is not possible: {reason}", hint="cut elsewhere")
        cuts.append(legal[0])
    return sorted(cuts)


def _cover(sets: Sequence[frozenset[str]], named: frozenset[str], wanted: int) -> tuple[frozenset[str], ...] | None:
    """``wanted`` of ``sets`` that make up ``named``, with as little overlap as there can be; None for none."""
    choices = itertools.islice(itertools.combinations(sets, wanted), _MOST_CHOICES)
    fitting = [choice for choice in choices if frozenset().union(*choice) == named]
    return min(fitting, key=lambda choice: sum(map(len, choice)), default=None)


def _also_crossing(places: Mapping[frozenset[str], Sequence[int]], named: frozenset[str]) -> list[str]:
    """For each name that alone is no cut, what else crosses where it does, at the cut where least does."""
    found = []
    for name in sorted(named):
        there = min((made for made in places if name in made), key=lambda made: len(made - named), default=frozenset())
        if others := sorted(there - named):
            more = f" and {len(others) - _LISTED} more" if len(others) > _LISTED else ""
            found.append(f"where {name} crosses, so do {', '.join(others[:_LISTED])}{more}")
    return found


def _no_crossing(graph: ir.Graph, name: str) -> list[str]:
    """Why a value of this name crosses no cut; empty when there is none of it."""
    if name in graph.initializers and is_weight(graph.initializers[name]):
        return [f"{name} is a weight: every stage that reads it holds it"]
    for node in graph:
        if any(output.name == name for output in node.outputs):
            return [f"{name} is read by nobody on the other side of a possible cut"]
        if any(output.name == name for body in all_bodies(node) for inner in body for output in inner.outputs):
            return [f"{name} is made in a body of {node.name} ({node.op_type}), which stays in one stage"]
        if node.name == name:
            return [f"{name} is a node; it makes {', '.join(str(each.name) for each in node.outputs if each.name)}"]
    if any(value.name == name for value in graph.inputs):
        return [f"{name} is an input of the model"]
    return []


def _stretch(units: Sequence[Unit], edges: Sequence[Boundary], start: int, stop: int) -> str:
    names = [name for unit in units[start:stop] for name in unit.nodes]
    if len(names) == 1:
        return f"{names[0]} is one node, with all that is inside it"
    inside = next((edge.reason for edge in edges[start : stop - 1] if edge.reason), "")
    inside = inside or next((f"{name} {why}" for unit in units[start:stop] for name, why in unit.refused.items()), "")
    return f"{_listed(names)} stay together" + (f": {inside}" if inside else "")


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= _LISTED else f"{names[0]} to {names[-1]} ({len(names)} nodes)"
