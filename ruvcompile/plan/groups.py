"""Equal nodes are one kind: what a plan chooses is how many of each, so a thousand of them are no more than a few.

Two nodes are equal when nothing that a plan looks at tells them apart: the machine, the threads, the memory, whom they
share cores with, what the rules let them hold, and the links to every other node. The head's node is a kind of its own,
as the head's work is added there. Nodes of a kind are used in the order of their names (``pi-2`` before ``pi-10``), and
kinds are put in order by what they are and then by that name, so that nothing depends on the order in which a fleet
lists its nodes.

A node whose machine has several back ends is of several kinds, one for each that the tables know: the same nodes in
another guise (``pool``), of which a plan uses each once. So which back end a stage runs on is chosen with the cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from ruvcompile.plan.facts import Facts
from ruvcompile.plan.nodes import Member, by_name
from ruvcompile.plan.prices import Prices


@dataclass(frozen=True)
class Group:
    """Members that are equal, in the order in which they are used, each with the one back end that it has here.

    ``crowd`` is an index, None elsewhere; groups of the same ``pool`` are the same nodes.
    """

    members: tuple[Member, ...]
    head: bool
    crowd: int | None
    pool: int = 0

    @property
    def first(self) -> Member:
        """Any of them."""
        return self.members[0]


@dataclass(frozen=True)
class Room:
    """The facts with all that is looked up again and again: prices and groups."""

    facts: Facts

    @cached_property
    def prices(self) -> Prices:
        """What the tables say."""
        return Prices(self.facts)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """The kinds of nodes there are."""
        return groups(self.facts, self.prices)

    @cached_property
    def head(self) -> Member:
        """The node whose cores do the head's work."""
        name = self.facts.options.fleet.head
        return self.prices.guises(next(member for member in self.facts.members if member.name == name))[0]

    @cached_property
    def pools(self) -> tuple[tuple[int, ...], ...]:
        """The groups that are the same nodes, as numbers."""
        found: dict[int, list[int]] = {}
        for number, group in enumerate(self.groups):
            found.setdefault(group.pool, []).append(number)
        return tuple(map(tuple, found.values()))


def groups(facts: Facts, prices: Prices) -> tuple[Group, ...]:
    """The members, those together that are equal."""
    crowd_of = {member: number for number, crowd in enumerate(facts.crowds) for member in crowd.members}
    alike: dict[Any, list[Member]] = {}
    for number, member in enumerate(facts.members):
        alike.setdefault(_key(facts, member, crowd_of.get(number)), []).append(member)
    found = []
    for key, same in alike.items():
        for twins in _twins(sorted(same, key=by_name), prices):
            found.append(Group(tuple(twins), head=key[0], crowd=key[1]))
    found.sort(key=lambda group: (not group.head, group.first.target.name, by_name(group.first)))
    return tuple(
        replace(group, members=guise, pool=pool)
        for pool, group in enumerate(found)
        for guise in zip(*map(prices.guises, group.members), strict=True)
    )


def _key(facts: Facts, member: Member, crowd: int | None) -> tuple[Any, ...]:
    node = member.node
    holds = frozenset(value for value, holders in facts.held.items() if node.name in holders)
    what = (member.target.name, member.threads, member.beside, node.memory, node.reserve)
    return (node.name == facts.options.fleet.head, crowd, *what, facts.barred.get(node.name, frozenset()), holds)


def _twins(same: Sequence[Member], prices: Prices) -> list[list[Member]]:
    """Those together whose links to everybody else are the same.

    To be each other's twins is the same for all of a set, so one of it is enough to compare with; and links can only
    differ to nodes that one of them has a link of its own with.
    """
    others = [member for member in prices.facts.members if member.name in prices.linked]
    found: list[list[Member]] = []
    for member in same:
        for twins in found:
            if _equal(twins[0], member, others, prices):
                twins.append(member)
                break
        else:
            found.append([member])
    return found


def _equal(one: Member, two: Member, others: Sequence[Member], prices: Prices) -> bool:
    if one.name not in prices.linked and two.name not in prices.linked:
        return True
    if prices.hop(one, two) != prices.hop(two, one):
        return False
    return all(
        prices.hop(one, other) == prices.hop(two, other) and prices.hop(other, one) == prices.hop(other, two)
        for other in others
        if other.name not in (one.name, two.name)
    )
