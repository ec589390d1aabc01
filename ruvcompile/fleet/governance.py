"""What a fleet asks of its nodes: facts that must be so, and parts of a model that must be somewhere.

A node states facts (``zone``, ``trust``, ``provides``), and a rule asks for them. A node that states nothing of what
is asked does not pass: what is not known to be so is not taken to be so.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

FACTS = ("zone", "trust", "provides")
NOTHING = "nothing"


class Facts(Protocol):
    """What a node says of itself."""

    @property
    def name(self) -> str: ...
    @property
    def zone(self) -> str: ...
    @property
    def trust(self) -> str: ...
    @property
    def provides(self) -> tuple[str, ...]: ...


@dataclass(frozen=True)
class Unmet:
    """One thing that is asked of a node and is not so; as text, for people and for ``rejected``."""

    fact: str
    wanted: str
    has: str


@dataclass(frozen=True)
class Wanted:
    """Facts that are asked for: one of ``zone``, one of ``trust``, all of ``provides``; empty: not asked."""

    zone: tuple[str, ...] = ()
    trust: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()

    def unmet(self, node: Facts) -> tuple[Unmet, ...]:
        """What of it is not so of ``node``."""
        found = [
            Unmet(fact, " or ".join(asked), has or NOTHING)
            for fact, asked, has in (("zone", self.zone, node.zone), ("trust", self.trust, node.trust))
            if asked and has not in asked
        ]
        if not set(self.provides) <= set(node.provides):
            found.append(Unmet("provides", " and ".join(self.provides), " and ".join(node.provides) or NOTHING))
        return tuple(found)


@dataclass(frozen=True)
class Place:
    """Part of a model, and the nodes that may hold it.

    Attributes:
        match: a pattern (``*``, ``?``, ``[...]``) over the names of graph nodes, or of graph inputs.
        on: names of the nodes that may hold it; empty: any that has what is ``wanted``.
        wanted: what such a node must have.
    """

    match: str
    on: tuple[str, ...] = ()
    wanted: Wanted = field(default_factory=Wanted)

    @property
    def rule(self) -> str:
        """What the rule is called in ``rejected``."""
        return f"place {self.match}"

    def unmet(self, node: Facts) -> tuple[Unmet, ...]:
        """Why ``node`` may not hold it; empty when it may."""
        found = self.wanted.unmet(node)
        if self.on and node.name not in self.on:
            return (Unmet("name", " or ".join(self.on), node.name), *found)
        return found
