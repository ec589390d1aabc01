"""The nouns: a machine, what connects two of them, and all of them together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ruvcompile.errors import InputError
from ruvcompile.fleet.governance import Place, Wanted
from ruvrun.manifest import LOCAL, reserve

HOST = "host"
PORT = 7070

MOST_NODES = 256
"""Machines of one fleet: a plan for so many takes minutes. Larger numbers are slips of the hand, or several fleets."""


@dataclass(frozen=True)
class Link:
    """What connects two nodes: ``bandwidth`` in bytes per second, ``latency`` in seconds, one way."""

    bandwidth: float
    latency: float


NETWORK = Link(bandwidth=125e6, latency=0.2e-3)
"""Assumed between machines when fleet.toml says nothing: gigabit Ethernet, 0.2 ms."""

LOOPBACK = Link(bandwidth=1e9, latency=0.1e-3)
"""Assumed between two processes of one machine: an encrypted hand-off over loopback TCP."""


@dataclass(frozen=True)
class FleetNode:
    """One machine of the fleet, or one process of this machine (``address`` is ``local``).

    ``memory`` is what is installed, in bytes; None means what the target (or this machine) has. ``reserve``
    is what the machine itself keeps; None means 15 %, at least 1 GiB. ``threads`` None: as many as ``cpus``,
    or a fair share of the cores. ``zone``, ``trust`` and ``provides`` are facts for placement rules; a node that
    says nothing of one has none of it.
    """

    name: str
    target: str
    address: str = LOCAL
    port: int = PORT
    memory: int | None = None
    reserve: int | None = None
    cpus: tuple[int, ...] = ()
    threads: int | None = None
    ssh: str = ""
    zone: str = ""
    trust: str = ""
    provides: tuple[str, ...] = ()

    @property
    def local(self) -> bool:
        """Whether the node is a process of this machine."""
        return self.address == LOCAL

    def usable(self, installed: int) -> int:
        """Bytes a stage may use of ``installed`` bytes, once the reserve is off."""
        left = self.reserve if self.reserve is not None else reserve(installed)
        return max(0, installed - left)


@dataclass(frozen=True)
class Fleet:
    """The machines in the order they were named, who answers HTTP, the links between them, and the rules.

    ``pairs`` holds the links that were given for one pair, by (from, to); ``default_link`` is what was given
    for all others, None where nothing was. ``path`` is the fleet file, None for a fleet made from flags.
    ``require`` is asked of every node that is used, ``places`` where parts of the model must be.
    """

    nodes: tuple[FleetNode, ...]
    head: str
    default_link: Link | None = None
    pairs: Mapping[tuple[str, str], Link] | None = None
    path: Path | None = None
    require: Wanted = field(default_factory=Wanted)
    places: tuple[Place, ...] = ()

    def node(self, name: str) -> FleetNode:
        """The node called ``name``; it must be there."""
        return next(node for node in self.nodes if node.name == name)

    def link(self, sender: str, receiver: str) -> Link | None:
        """What the fleet file says of this direction, else of the other, else of all; None where it says nothing."""
        pairs = self.pairs or {}
        return pairs.get((sender, receiver)) or pairs.get((receiver, sender)) or self.default_link

    def require_addresses(self) -> None:
        """Where some nodes are other machines, all must be where these can find them.

        Raises:
            InputError: ``node-local``: one is known as a process of this machine only.
        """
        here = [node.name for node in self.nodes if node.local]
        away = [node.name for node in self.nodes if not node.local]
        if here and away:
            raise InputError(
                "node-local",
                f"{', '.join(here)} has the address 'local', where {', '.join(away)} cannot find it",
                hint=f'say how other machines reach it, as in address = "{here[0]}.local"',
            )
