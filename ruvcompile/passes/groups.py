"""Join units, so that cuts fall only between groups.

The layers of a decoder have many parallel branches, and a cut through the middle of one would send half a
dozen tensors where a cut between two sends one. Groups keep the search to the sensible cuts. Groups that need
each other's values in a circle cannot be on different sides of any cut, and become one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter

from ruvcompile.passes.units import Unit, refusals


def group(units: Sequence[Unit], key: Callable[[str], str]) -> tuple[Unit, ...]:
    """Join the units of equal ``key(node name)``; a unit's first node decides.

    Groups that need each other's values in a circle are joined into one. The result is in a topological order
    which keeps to that of ``units`` where it can.
    """
    members: dict[str, list[Unit]] = {}
    for unit in units:
        members.setdefault(key(unit.nodes[0]), []).append(unit)
    groups = list(members.values())
    while (circle := _circle(groups)) is not None:
        groups[circle[0]] = [unit for index in circle for unit in groups[index]]
        groups = [parts for index, parts in enumerate(groups) if index not in circle[1:]]
    place = {id(unit): number for number, unit in enumerate(units)}
    for parts in groups:
        parts.sort(key=lambda unit: place[id(unit)])
    readers = _readers(groups)
    ordered = _sorted(groups, [place[id(parts[0])] for parts in groups])
    relays = tuple(name for unit in units for name in unit.relays)
    joined = [replace(_join(groups[index], index, readers), relays=()) for index in ordered]
    return (*joined[:-1], replace(joined[-1], relays=relays))


def _readers(groups: Sequence[Sequence[Unit]]) -> dict[str, set[int]]:
    """For each value that is read, the indices of the groups that read it."""
    readers: dict[str, set[int]] = {}
    for index, parts in enumerate(groups):
        for unit in parts:
            for name in unit.inputs:
                readers.setdefault(name, set()).add(index)
    return readers


def _needs(groups: Sequence[Sequence[Unit]]) -> dict[int, set[int]]:
    """For each group, the other groups whose values it reads."""
    maker = {name: index for index, parts in enumerate(groups) for unit in parts for name in unit.outputs}
    return {
        index: {maker[name] for unit in parts for name in unit.inputs if name in maker} - {index}
        for index, parts in enumerate(groups)
    }


def _circle(groups: Sequence[Sequence[Unit]]) -> list[int] | None:
    """Groups that need each other in a circle, each once, the first of them first; None when there is no circle."""
    try:
        TopologicalSorter(_needs(groups)).prepare()
    except CycleError as error:
        return sorted(set(error.args[1]))
    return None


def _sorted(groups: Sequence[Sequence[Unit]], place: Sequence[int]) -> list[int]:
    """The groups in topological order; of those that may come next, the one that starts first in the graph."""
    sorter = TopologicalSorter(_needs(groups))
    sorter.prepare()
    ready: list[tuple[int, int]] = []
    order: list[int] = []
    while sorter.is_active():
        for index in sorter.get_ready():
            heapq.heappush(ready, (place[index], index))
        _, index = heapq.heappop(ready)
        order.append(index)
        sorter.done(index)
    return order


def _join(parts: Sequence[Unit], index: int, readers: Mapping[str, set[int]]) -> Unit:
    """The one unit that group ``index`` becomes."""
    if len(parts) == 1:
        return parts[0]
    made = dict.fromkeys(name for part in parts for name in part.outputs)
    results = tuple(name for part in parts for name in part.results)
    outputs = tuple(name for name in made if name in results or readers.get(name, set()) - {index})
    return Unit(
        nodes=tuple(name for part in parts for name in part.nodes),
        inputs=tuple(dict.fromkeys(name for part in parts for name in part.inputs if name not in made)),
        outputs=outputs,
        weights=tuple(dict.fromkeys(name for part in parts for name in part.weights)),
        results=results,
        refused=refusals(parts),
    )
