"""The fleet: the actual machines, their memory and cores, what connects them, and what must stay where.

A fleet is read from ``fleet.toml`` (``load_fleet``) or made from ``--target`` and ``--nodes`` (``make_fleet``).
Sizes are bytes, rates bytes per second, times seconds. ``machines`` holds the nouns, ``governance`` what a fleet asks
of its nodes, ``entries`` reads one table, ``file`` the whole file, ``equal`` makes a fleet of equal machines.
"""

from ruvcompile.fleet.equal import make_fleet
from ruvcompile.fleet.file import load_fleet
from ruvcompile.fleet.governance import Place, Unmet, Wanted
from ruvcompile.fleet.machines import HOST, LOOPBACK, NETWORK, PORT, Fleet, FleetNode, Link

__all__ = [
    "HOST",
    "LOOPBACK",
    "NETWORK",
    "PORT",
    "Fleet",
    "FleetNode",
    "Link",
    "Place",
    "Unmet",
    "Wanted",
    "load_fleet",
    "make_fleet",
]
