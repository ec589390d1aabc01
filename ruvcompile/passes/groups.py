"""Join units, so that cuts fall only between groups.

The layers of a decoder have many parallel branches, and a cut through the middle of one would send half a
dozen tensors where a cut between two sends one. Groups keep the search to the sensible cuts (``group``). And units
between which a value passes that must not cross a cut are on the same side of any: joined, they leave the nodes
around them free, which in the order of the graph may stand in between (``together``). Groups that need each
other's values in a circle cannot be on different sides of a cut either, and become one.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from graphlib import TopologicalSorter

from ruvcompile.passes.units import Unit, refusals


def group(units: Sequence[Unit], key: Callable[[str], str]) -> tuple[Unit, ...]:
    """Join the units of equal ``key(node name)``; a unit's first node decides.

    Groups that need each other's values in a circle are joined into one. The result is in a topological order
    which keeps to that of ``units`` where it can.
    """
    members: dict[str, list[Unit]] = {}
    for unit in units:
        members.setdefault(key(unit.nodes[0]), []).append(unit)
    return _joined(units, list(members.values()))


def together(units: Sequence[Unit]) -> tuple[Unit, ...]:
    """Join the maker of every value that must not cross a cut with all that read it; the order as in ``group``."""
    root = list(range(len(units)))

    def find(index: int) -> int:
        while root[index] != index:
            root[index] = root[root[index]]
            index = root[index]
        return index

    maker = {name: index for index, unit in enumerate(units) for name in unit.outputs}
    for index, unit in enumerate(units):
        for name in unit.inputs:
            if name in unit.refused and name in maker:
                root[find(index)] = find(maker[name])
    members: dict[int, list[Unit]] = {}
    for index, unit in enumerate(units):
        members.setdefault(find(index), []).append(unit)
    if len(members) == len(units):
        return tuple(units)
    return _joined(units, list(members.values()))


def _joined(units: Sequence[Unit], groups: list[list[Unit]]) -> tuple[Unit, ...]:
    """The units that ``groups`` of ``units`` become."""
    groups = [[unit for index in circle for unit in groups[index]] for circle in _circles(_needs(groups))]
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


def _circles(needs: Mapping[int, set[int]]) -> list[list[int]]:
    """The strongly connected components of a graph; most are single. Tarjan's algorithm (1972), without recursion."""
    number: dict[int, int] = {}
    lowest: dict[int, int] = {}
    path: list[int] = []
    on_path: set[int] = set()
    found: list[list[int]] = []
    for start in needs:
        if start in number:
            continue
        walk: list[tuple[int, Iterator[int]]] = []
        following: int | None = start
        while following is not None or walk:
            if following is not None:
                number[following] = lowest[following] = len(number)
                path.append(following)
                on_path.add(following)
                walk.append((following, iter(needs[following])))
            here, others = walk[-1]
            following = None
            for other in others:
                if other not in number:
                    following = other
                    break
                if other in on_path:
                    lowest[here] = min(lowest[here], number[other])
            if following is not None:
                continue
            walk.pop()
            if walk:
                before = walk[-1][0]
                lowest[before] = min(lowest[before], lowest[here])
            if lowest[here] == number[here]:
                circle = [path.pop()]
                while circle[-1] != here:
                    circle.append(path.pop())
                on_path.difference_update(circle)
                found.append(sorted(circle))
    return found


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
