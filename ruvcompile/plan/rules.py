"""Governed placement: which nodes of the fleet may hold what, from the fleet's rules and the model they speak about.

Rules are hard constraints, never preferences: a plan that breaks one is none. There are three kinds.

* ``[require]`` is asked of every node that is used, the head's included. A node that does not pass is out.
* ``[[place]]`` whose pattern matches graph nodes: the units that hold these may be on some nodes only; every other
  node is *barred* from them.
* ``[[place]]`` whose pattern matches an input of the graph: that input may never be anywhere else. So what reads it
  is on these nodes, it crosses no link to another node and is not relayed by one, and the head, which is given it by
  whoever asks, is on one of them too. This holds for what is the same again in another form (``passes.copies``).
  The state of a decoder does not come with the request: to bind it is to bind who reads it. Its ``input_ids`` do, and
  whoever makes ``logits`` chooses the next of them, so that these are bound with them.

Nothing here chooses: the plan does, among what is left. Whatever was turned down is listed with node, rule, what was
wanted and what the node has, so that nobody has to guess why a machine stays idle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from ruvcompile.errors import FitError, InputError, RuvError, did_you_mean, raise_all
from ruvcompile.fleet import Fleet, FleetNode, Place, Unmet
from ruvcompile.passes.copies import copies
from ruvcompile.passes.scope import all_nodes
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program

_TOKENS, _LOGITS = "input_ids", "logits"
_MOST_NAMES = 2000
_SHOWN = 4
_TOLD = 30
LESS = "correct what the nodes say of themselves, or ask for less in the fleet file"


@dataclass(frozen=True)
class Rules:
    """What the rules of a fleet leave.

    Attributes:
        nodes: those that pass ``[require]``, in the order of the fleet; never none.
        barred: for each of them, which units it may not hold.
        held: values of the program that may be on some nodes only, and the names of these. A unit that reads or makes
            one is barred elsewhere; what is left to see to is that no other node relays it.
        rejected: ``node``, ``rule``, ``wanted`` and ``has`` of everything that was turned down.
    """

    nodes: tuple[FleetNode, ...]
    barred: Mapping[str, frozenset[int]]
    held: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rejected: tuple[Mapping[str, str], ...] = ()


@dataclass(frozen=True)
class _Bound:
    """A place in this model: the nodes that it allows, and the units and the inputs that it binds to them."""

    allowed: frozenset[str]
    units: frozenset[int]
    inputs: tuple[str, ...]


def rules_of(fleet: Fleet, program: Program, units: Sequence[Unit]) -> Rules:
    """The rules of ``fleet``, as they are for ``program``.

    Args:
        fleet: as it was read.
        program: in canonical form.
        units: of it; ``Rules.barred`` speaks of them by their index.

    Raises:
        InputError: ``place-unmatched``, ``place-unread``: a pattern that matches nothing in this model, or an input
            that nothing reads.
        FitError: ``fleet-rejected``: no node is left, or none for a part of the model; ``head-rejected``: the head is
            on a node where it may not be.
    """
    nodes = tuple(node for node in fleet.nodes if not fleet.require.unmet(node))
    rejected = tuple(_rejections(fleet, nodes))
    if not nodes:
        raise _nothing_left("no node of the fleet has what is required", rejected)
    bound = _bound(fleet.places, nodes, program, units)
    held = _held(program, bound)
    _check_head(fleet, nodes, bound, rejected)
    barred = {node.name: _barred(node.name, bound, held, units) for node in nodes}
    for number in sorted(frozenset.intersection(*barred.values())):
        what = f"no node may hold {units[number].nodes[0]}"
        raise _nothing_left(what, rejected, _ruled(number, fleet.places, bound))
    return Rules(nodes, barred, held, rejected)


def _rejections(fleet: Fleet, left: Sequence[FleetNode]) -> Iterator[Mapping[str, str]]:
    def told(node: FleetNode, rule: str, unmet: Unmet) -> Mapping[str, str]:
        return {"node": node.name, "rule": rule, "wanted": unmet.wanted, "has": unmet.has}

    for node in fleet.nodes:
        yield from (told(node, f"require.{each.fact}", each) for each in fleet.require.unmet(node))
    for place in fleet.places:
        for node in left:
            for each in place.unmet(node):
                yield told(node, place.rule if each.fact == "name" else f"{place.rule} {each.fact}", each)


def _bound(
    places: Sequence[Place], nodes: Sequence[FleetNode], program: Program, units: Sequence[Unit]
) -> tuple[_Bound, ...]:
    """Each place in this model.

    Raises:
        InputError: one that matches nothing, or an input that is not read; all of them at once.
    """
    if not places:
        return ()
    graph = program.model.graph
    owner = {name: number for number, unit in enumerate(units) for name in unit.nodes}
    # A node inside a body is where the node with the body is.
    names = {str(inner.name): owner[str(node.name)] for node in graph for inner in all_nodes([node])}
    inputs = [str(value.name) for value in graph.inputs]
    read = {name for unit in units for name in (*unit.inputs, *unit.relays)}
    found, problems = [], list[RuvError]()
    for place in places:
        matched = frozenset(number for name, number in names.items() if _matches(name, place.match))
        named = tuple(name for name in inputs if _matches(name, place.match))
        if not matched and not named:
            what = f"place {place.match!r} matches no node and no input of this model"
            problems.append(InputError("place-unmatched", what, hint=_near(place.match, list(names), inputs)))
        if not matched and (unread := [name for name in named if name not in read]):
            # The head hands every input to the first stage, whoever that is.
            what = f"place {place.match!r} is about {unread[0]}, which this model does not read"
            problems.append(InputError("place-unread", what, hint="remove that input from the model, or the place"))
        allowed = frozenset(node.name for node in nodes if not place.unmet(node))
        state = {name for name in named if program.decoder is not None and name != _TOKENS}
        reading = frozenset(number for number, unit in enumerate(units) if state & {*unit.inputs, *unit.relays})
        found.append(_Bound(allowed, matched | reading, tuple(name for name in named if name not in state)))
    raise_all(problems)
    return tuple(found)


def _matches(name: str, pattern: str) -> bool:
    """Exporters write brackets into names, so a name as it stands is a pattern for itself."""
    return name == pattern or fnmatchcase(name, pattern)


def _near(pattern: str, names: Sequence[str], inputs: Sequence[str]) -> str:
    """The nearest name or folder of names, else a few of what there is."""
    folders = dict.fromkeys(
        f"{'/'.join(parts[:depth])}/*"
        for parts in (name.split("/") for name in names)
        for depth in range(1, len(parts))
        if any(parts[:depth])
    )
    known = [*inputs, *list(folders)[:_MOST_NAMES], *names[:_MOST_NAMES]]
    hint = did_you_mean(pattern, known)
    if hint.startswith("did you mean"):
        return hint
    few = [", ".join(each[:_SHOWN]) + (", ..." if len(each) > _SHOWN else "") for each in (inputs, names)]
    return f"inputs: {few[0]}; nodes: {few[1]}"


def _held(program: Program, bound: Sequence[_Bound]) -> dict[str, frozenset[str]]:
    """The inputs that are bound, with all that is the same again, and who may hold each."""
    found: dict[str, frozenset[str]] = {}
    for each in bound:
        for name in each.inputs:
            found[name] = found.get(name, each.allowed) & each.allowed
    if not found:
        return {}
    if program.decoder is not None:
        return {**found, _LOGITS: found[_TOKENS]}
    return copies(program.model.graph, found)


def _barred(
    name: str, bound: Sequence[_Bound], held: Mapping[str, frozenset[str]], units: Sequence[Unit]
) -> frozenset[int]:
    """The units that the node called ``name`` may not hold."""
    own = {number for each in bound if name not in each.allowed for number in each.units}
    closed = {value for value, holders in held.items() if name not in holders}
    if closed:
        touched = enumerate((*unit.inputs, *unit.outputs, *unit.relays) for unit in units)
        own |= {number for number, values in touched if not closed.isdisjoint(values)}
    return frozenset(own)


def _check_head(
    fleet: Fleet, nodes: Sequence[FleetNode], bound: Sequence[_Bound], rejected: Sequence[Mapping[str, str]]
) -> None:
    """The head is used, and it is given every input: what is asked of a node for these is asked of it."""
    head = fleet.head
    possible = [node.name for node in nodes]
    why = "has not what is required of every node" if head not in possible else ""
    for each in bound:
        if each.inputs and head not in each.allowed:
            why = why or f"is given {each.inputs[0]}, which may not be there"
        if each.inputs:
            possible = [name for name in possible if name in each.allowed]
    if why:
        hint = f'head = "{possible[0]}" in the fleet file' if possible else "no node may be the head: change the rules"
        told = [_line(entry) for entry in rejected if entry["node"] == head]
        raise FitError("head-rejected", f"the head is on {head}, which {why}", context=told, hint=hint)


def _ruled(number: int, places: Sequence[Place], bound: Sequence[_Bound]) -> list[str]:
    """The rules that bind a unit itself, in the words of the fleet file."""
    return [place.rule for place, each in zip(places, bound, strict=True) if number in each.units]


def _nothing_left(what: str, rejected: Sequence[Mapping[str, str]], rules: Sequence[str] = ()) -> FitError:
    bound = [f"bound by {', '.join(rules)}"] if rules else []
    return FitError("fleet-rejected", what, context=[*bound, *told(rejected)], hint=LESS)


def told(rejected: Sequence[Mapping[str, str]]) -> list[str]:
    """What was turned down, a line each; of very much, the first."""
    lines = [_line(entry) for entry in rejected]
    return lines if len(lines) <= _TOLD else [*lines[:_TOLD], f"and {len(lines) - _TOLD} more"]


def _line(entry: Mapping[str, str]) -> str:
    return f"{entry['node']}: {entry['rule']}, wanted {entry['wanted']}, has {entry['has']}"
