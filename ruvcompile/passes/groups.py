"""Join units, so that cuts fall only between groups.

The layers of a decoder have many parallel branches, and a cut through the middle of one would send half a
dozen tensors where a cut between two sends one. Groups keep the search to the sensible cuts (``group``). And units
between which a value passes that must not cross a cut are on the same side of any: joined, they leave the nodes
around them free, which in the order of the graph may stand in between (``together``). What reads an input of the
graph that must not cross a cut comes as early as it can, what makes such a result as late as it can. Groups that
need each other's values in a circle cannot be on different sides of a cut either, and become one.
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
    """Join the maker of every value that must not cross a cut with all that read it.

    The result is in a topological order that keeps to that of ``units`` where it can, but for what has to be early
    or late (see the module's text).
    """
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
    refused = refusals(units)
    early = [index for index, unit in enumerate(units) if any(n in refused and n not in maker for n in unit.inputs)]
    late = [index for index, unit in enumerate(units) if any(name in refused for name in unit.results)]
    if len(members) == len(units) and not early and not late:
        return tuple(units)
    needs = _needs([[unit] for unit in units])
    rank = [1] * len(units)
    for index in _reached(early, needs):
        rank[index] = 0
    for index in _reached(late, _turned(needs)):
        rank[index] = 2
    return _joined(units, list(members.values()), rank)


def _joined(units: Sequence[Unit], groups: list[list[Unit]], rank: Sequence[int] | None = None) -> tuple[Unit, ...]:
    """The units that ``groups`` of ``units`` become; what has a unit of a lower ``rank`` is earlier where it can."""
    groups = [[unit for index in circle for unit in groups[index]] for circle in _circles(_needs(groups))]
    place = {id(unit): number for number, unit in enumerate(units)}
    for parts in groups:
        parts.sort(key=lambda unit: place[id(unit)])
    readers = _readers(groups)
    firsts = [place[id(parts[0])] for parts in groups]
    ranks = [min(rank[place[id(unit)]] for unit in parts) if rank else 0 for parts in groups]
    ordered = _sorted(groups, list(zip(ranks, firsts, strict=True)))
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


def _reached(starts: Sequence[int], following: Mapping[int, set[int]]) -> set[int]:
    """``starts`` and all that can be reached from them."""
    found = set(starts)
    waiting = list(starts)
    while waiting:
        new = following[waiting.pop()] - found
        found |= new
        waiting.extend(new)
    return found


def _turned(needs: Mapping[int, set[int]]) -> dict[int, set[int]]:
    """The same graph with every edge the other way round."""
    turned: dict[int, set[int]] = {index: set() for index in needs}
    for index, others in needs.items():
        for other in others:
            turned[other].add(index)
    return turned


def _sorted(groups: Sequence[Sequence[Unit]], place: Sequence[tuple[int, int]]) -> list[int]:
    """The groups in topological order; of those that may come next, the one of the least ``place``."""
    sorter = TopologicalSorter(_needs(groups))
    sorter.prepare()
    ready: list[tuple[tuple[int, int], int]] = []
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
