"""Which nodes have been used, and which of them last: what a search goes through, and in what order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import product

Nodes = tuple[int, ...]
"""How many of each kind."""

State = tuple[Nodes, int]
"""The nodes that have been used, and the kind of the last one."""


def finals(wanted: Collection[Nodes]) -> list[State]:
    """The states in which all nodes of one of ``wanted`` are used."""
    return [(nodes, kind) for nodes in wanted for kind, number in enumerate(nodes) if number]


def may_follow(state: State) -> list[State]:
    """The states that a state may follow."""
    nodes, kind = state
    rest = tuple(number - (each == kind) for each, number in enumerate(nodes))
    return [(rest, each) for each, number in enumerate(rest) if number]


def rising(wanted: Collection[Nodes]) -> Iterator[tuple[int, list[State]]]:
    """Kinds with their states on the way to any of ``wanted``, those of fewer nodes first."""
    parts = {part for nodes in wanted for part in product(*(range(number + 1) for number in nodes))}
    for size in range(1, 1 + max((sum(part) for part in parts), default=0)):
        those = sorted(part for part in parts if sum(part) == size)
        for kind in range(len(those[0])):
            states = [(part, kind) for part in those if part[kind]]
            if states:
                yield kind, states


def within(part: Nodes, nodes: Nodes) -> bool:
    """Whether ``nodes`` has all of ``part``."""
    return all(few <= many for few, many in zip(part, nodes, strict=True))
