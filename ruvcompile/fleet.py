"""The fleet: the actual machines, their memory and cores, and what connects them.

A fleet is read from ``fleet.toml`` (``load_fleet``) or made from ``--target`` and ``--nodes``
(``make_fleet``). Sizes are bytes, rates bytes per second, times seconds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ruvcompile.configuration import not_in_this_version, read_configuration, unknown_keys
from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean, raise_all
from ruvcompile.quantities import parse_rate, parse_size, parse_time
from ruvrun.manifest import LOCAL

HOST = "host"
PORT = 7070
GIB = 2**30
RESERVE_SHARE = 0.15
RESERVE_LEAST = GIB

NODE_KEYS = ("name", "target", "address", "port", "memory", "reserve", "cpus", "threads", "ssh")
LINK_KEYS = ("from", "to", "bandwidth", "latency")
LATER_TABLES = {"require": "[require]", "place": "[[place]]"}
LATER_NODE_KEYS = ("zone", "trust", "provides")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")

_KINDS = {str: "text in quotes", int: "a whole number in range", list: "a list of core numbers"}
_EXAMPLES = {"memory": "8GiB", "reserve": "1GiB", "bandwidth": "1Gbit", "latency": "0.2ms"}
_N = TypeVar("_N", int, float)


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
    or a fair share of the cores.
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

    @property
    def local(self) -> bool:
        """Whether the node is a process of this machine."""
        return self.address == LOCAL

    def usable(self, installed: int) -> int:
        """Bytes a stage may use of ``installed`` bytes, once the reserve is off."""
        reserve = self.reserve if self.reserve is not None else max(int(installed * RESERVE_SHARE), RESERVE_LEAST)
        return max(0, installed - reserve)


@dataclass(frozen=True)
class Fleet:
    """The machines in the order they were named, who answers HTTP, and the links between them.

    ``pairs`` holds the links that were given for one pair, by (from, to); ``default_link`` is what was given
    for all others, None where nothing was. ``path`` is the fleet file, None for a fleet made from flags.
    """

    nodes: tuple[FleetNode, ...]
    head: str
    default_link: Link | None = None
    pairs: Mapping[tuple[str, str], Link] | None = None
    path: Path | None = None

    def node(self, name: str) -> FleetNode:
        """The node called ``name``; it must be there."""
        return next(node for node in self.nodes if node.name == name)

    def link(self, sender: str, receiver: str) -> Link:
        """What connects two nodes, in this direction; a link given one way holds both ways."""
        pairs = self.pairs or {}
        found = pairs.get((sender, receiver)) or pairs.get((receiver, sender)) or self.default_link
        if found:
            return found
        return LOOPBACK if self.node(sender).local and self.node(receiver).local else NETWORK


def make_fleet(target: str, nodes: str) -> Fleet:
    """A fleet of equal machines from ``--target`` and ``--nodes``.

    Args:
        target: name of the target; whether it exists is not asked here.
        nodes: a count, or host names with commas. With a count, nodes of target ``host`` are processes of
            this machine and others are ``TARGET-0`` at the address ``TARGET-0.local``.
    """
    if re.fullmatch(r"-?[0-9]+", nodes):
        count = int(nodes)
        if count < 1:
            raise UsageError("nodes-invalid", f"--nodes {nodes} is not a number of nodes", hint="give at least 1")
        names = [f"{target}-{index}" for index in range(count)]
        made = tuple(FleetNode(name, target, LOCAL if target == HOST else f"{name}.local") for name in names)
    else:
        names = [name.strip() for name in nodes.split(",")]
        wrong = [name for name in names if not _NAME.fullmatch(name)] or sorted(
            {n for n in names if names.count(n) > 1}
        )
        if wrong:
            raise UsageError(
                "nodes-invalid",
                f"--nodes {nodes}: {wrong[0]!r} is not a host name, or is named twice",
                hint="give a count, or host names with commas: --nodes pi-0.local,pi-1.local",
            )
        made = tuple(FleetNode(name, target, address=name) for name in names)
    return Fleet(made, head=made[0].name)


def load_fleet(path: Path) -> Fleet:
    """Read ``fleet.toml``; everything that is wrong with it is told at once.

    Raises:
        InputError: the file is missing, is not TOML, or says something that cannot be.
        UsageError: it asks for something this version does not do.
    """
    raw = read_configuration(path, "fleet file")
    problems: list[RuvError] = []
    for key, shown in LATER_TABLES.items():
        if raw.pop(key, None):
            problems.append(not_in_this_version(f"{shown} of {path}"))
    problems += unknown_keys(raw, ("format", "head", "node", "link"), str(path))
    nodes = [
        _read_node(entry, index, problems, path) for index, entry in enumerate(_tables(raw, "node", problems, path))
    ]
    names = [node.name for node in nodes]
    if not nodes and not problems:
        problems.append(InputError("fleet-empty", f"{path} names no node", hint="add a [[node]] table"))
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(
            InputError("node-twice", f"{path}: node {name!r} is there twice", hint="give each its own name")
        )
    head = raw.get("head", names[0] if names else "")
    if names and head not in names:
        problems.append(
            InputError("head-unknown", f"{path}: head {head!r} is not a node", hint=did_you_mean(str(head), names))
        )
    default_link = None
    pairs: dict[tuple[str, str], Link] = {}
    for entry in _tables(raw, "link", problems, path):
        ends, link = _read_link(entry, names, problems, path)
        if ends:
            pairs[ends] = link
        else:
            default_link = link
    raise_all(problems)
    return Fleet(tuple(nodes), head, default_link, pairs, path)


def _tables(raw: Mapping[str, Any], key: str, problems: list[RuvError], path: Path) -> list[dict[str, Any]]:
    found = raw.get(key, [])
    if isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
        return found
    problems.append(InputError("fleet-wrong", f"{path}: {key} is not a list of tables", hint=f"write [[{key}]]"))
    return []


def _read_node(entry: dict[str, Any], index: int, problems: list[RuvError], path: Path) -> FleetNode:
    where = f"{path}: node {entry.get('name', index)!r}"
    for key in LATER_NODE_KEYS:
        if entry.pop(key, None) is not None:
            problems.append(not_in_this_version(f"{where}: {key}"))
    problems += unknown_keys(entry, NODE_KEYS, where)
    take = _Taker(entry, where, problems)
    name = take("name", str, "")
    if not _NAME.fullmatch(name):
        problems.append(InputError("node-name", f"{where} needs a name", hint="letters, digits, dot, dash, underscore"))
    target = take("target", str, "")
    if not target:
        problems.append(InputError("node-target", f"{where} names no target", hint=f'add target = "{HOST}" or another'))
    return FleetNode(
        name=name,
        target=target,
        address=take("address", str, LOCAL if target == HOST else f"{name}.local"),
        port=take("port", int, PORT, lambda port: 0 < port < 2**16),
        memory=take.unit("memory", parse_size),
        reserve=take.unit("reserve", parse_size),
        cpus=tuple(take("cpus", list, [], lambda cpus: all(type(cpu) is int and cpu >= 0 for cpu in cpus))),
        threads=take("threads", int, None, lambda threads: threads > 0),
        ssh=take("ssh", str, ""),
    )


def _read_link(
    entry: dict[str, Any], names: list[str], problems: list[RuvError], path: Path
) -> tuple[tuple[str, str] | None, Link]:
    where = f"{path}: link {entry.get('from', '')} -> {entry.get('to', '')}" if "from" in entry else f"{path}: link"
    problems += unknown_keys(entry, LINK_KEYS, where)
    take = _Taker(entry, where, problems)
    ends = None
    if "from" in entry or "to" in entry:
        ends = (take("from", str, ""), take("to", str, ""))
        for end in ends:
            if end not in names:
                problems.append(
                    InputError("node-unknown", f"{where}: {end!r} is not a node", hint=did_you_mean(end, names))
                )
    rate = take.unit("bandwidth", parse_rate)
    latency = take.unit("latency", parse_time)
    return ends, Link(
        bandwidth=NETWORK.bandwidth if rate is None else rate, latency=NETWORK.latency if latency is None else latency
    )


class _Taker:
    """Takes values out of one table, each of its right type; what is wrong is noted and the default taken."""

    def __init__(self, entry: Mapping[str, Any], where: str, problems: list[RuvError]) -> None:
        self.entry, self.where, self.problems = entry, where, problems

    def __call__(self, key: str, kind: type, default: Any, right: Callable[[Any], bool] = lambda _: True) -> Any:
        value = self.entry.get(key, default)
        if key not in self.entry or (type(value) is kind and right(value)):
            return value
        self._wrong(f"{key} = {value!r} is not right", f"it is {_KINDS[kind]}")
        return default

    def unit(self, key: str, parse: Callable[[str | int], _N]) -> _N | None:
        if key not in self.entry:
            return None
        try:
            return parse(self.entry[key])
        except ValueError as error:
            self._wrong(f"{key}: {error}", f'as in {key} = "{_EXAMPLES[key]}"')
            return None

    def _wrong(self, what: str, hint: str) -> None:
        self.problems.append(InputError("fleet-wrong", f"{self.where}: {what}", hint=hint))
