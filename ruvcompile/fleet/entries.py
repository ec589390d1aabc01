"""One table of the fleet file at a time: a node, a link, what is required, a place.

What is wrong is noted in a list of problems and a default taken in its place, so that the rest of the file is read
and everything that is wrong with it is told at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ruvcompile.configuration import unknown_keys
from ruvcompile.errors import InputError, RuvError, did_you_mean
from ruvcompile.fleet.governance import FACTS, Place, Wanted
from ruvcompile.fleet.machines import HOST, NETWORK, PORT, FleetNode, Link
from ruvcompile.quantities import parse_rate, parse_size, parse_time
from ruvrun.manifest import LOCAL

NODE_KEYS = ("name", "target", "address", "port", "memory", "reserve", "cpus", "threads", "ssh", *FACTS)
LINK_KEYS = ("from", "to", "bandwidth", "latency")
PLACE_KEYS = ("match", "on", *FACTS)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_ADDRESS, _SSH = re.compile(r"[A-Za-z0-9:][^\s/@]*"), re.compile(r"([^\s-]\S*)?")

_KINDS = {str: "text in quotes", int: "a whole number in range", list: "a list of core numbers, each once"}
_FORMS = {"address": "a host name or an IP number, in quotes", "ssh": "user@host, in quotes and without spaces"}
_EXAMPLES = {"memory": "8GiB", "reserve": "1GiB", "bandwidth": "1Gbit", "latency": "0.2ms"}
_LEAST_MEMORY = 2**20
_N = TypeVar("_N", int, float)


def read_node(entry: Mapping[str, Any], index: int, problems: list[RuvError], path: Path) -> FleetNode:
    """A ``[[node]]``."""
    where = f"{path}: node {entry.get('name', index)!r}"
    problems += unknown_keys(entry, NODE_KEYS, where)
    take = _Taker(entry, where, problems)
    name = take("name", str, "")
    if not NAME.fullmatch(name):
        problems.append(InputError("node-name", f"{where} needs a name", hint="letters, digits, dot, dash, underscore"))
    target = take("target", str, "")
    if not target:
        problems.append(InputError("node-target", f"{where} names no target", hint=f'add target = "{HOST}" or another'))
    memory, reserve = take.unit("memory", parse_size), take.unit("reserve", parse_size)
    if memory is not None and memory < _LEAST_MEMORY:
        take.wrong(f"memory = {entry['memory']!r} is {memory} bytes", 'with its unit, as in memory = "8GiB"')
    elif memory is not None and reserve is not None and reserve >= memory:
        take.wrong("reserve leaves nothing of memory", "lower it, or leave it out for 15 %")
    return FleetNode(
        name=name,
        target=target,
        address=take("address", str, LOCAL if target == HOST else f"{name}.local", _ADDRESS.fullmatch),
        port=take("port", int, PORT, lambda port: 0 < port < 2**16),
        memory=memory,
        reserve=reserve,
        cpus=tuple(take("cpus", list, [], _cores)),
        threads=take("threads", int, None, lambda threads: 0 < threads <= 1024),
        ssh=take("ssh", str, "", _SSH.fullmatch),
        zone=take("zone", str, "", bool),
        trust=take("trust", str, "", bool),
        provides=take.texts("provides", single=False),
    )


def read_link(
    entry: Mapping[str, Any], names: Sequence[str], problems: list[RuvError], path: Path
) -> tuple[tuple[str, str] | None, Link]:
    """A ``[[link]]``: the pair it is between, None for the default between nodes; and the link."""
    paired = "from" in entry or "to" in entry
    where = f"{path}: link {entry.get('from', '')} -> {entry.get('to', '')}" if paired else f"{path}: link"
    problems += unknown_keys(entry, LINK_KEYS, where)
    take = _Taker(entry, where, problems)
    ends = None
    if paired:
        ends = (take("from", str, ""), take("to", str, ""))
        if missing := [key for key in ("from", "to") if key not in entry]:
            take.wrong(f"{missing[0]} is missing", "name both ends, or neither for the default between nodes")
        for key, end in zip(("from", "to"), ends, strict=True):
            if isinstance(entry.get(key), str) and end not in names:
                hint = did_you_mean(end, names)
                problems.append(InputError("fleet-node-unknown", f"{where}: {end!r} is not a node", hint=hint))
        if ends[0] and ends[0] == ends[1]:
            take.wrong("a node needs no link to itself", "name two nodes, or leave the link out")
    if not entry.keys() & {"bandwidth", "latency"}:
        take.wrong("it says nothing of the link", 'add bandwidth = "1Gbit" or latency = "0.2ms", or leave it out')
    rate, latency = take.unit("bandwidth", parse_rate), take.unit("latency", parse_time)
    return ends, Link(
        bandwidth=NETWORK.bandwidth if rate is None else rate, latency=NETWORK.latency if latency is None else latency
    )


def read_require(entry: Mapping[str, Any], problems: list[RuvError], path: Path) -> Wanted:
    """``[require]``."""
    where = f"{path}: [require]"
    problems += unknown_keys(entry, FACTS, where)
    return _wanted(_Taker(entry, where, problems))


def read_place(
    entry: Mapping[str, Any], index: int, names: Sequence[str], problems: list[RuvError], path: Path
) -> Place:
    """A ``[[place]]``."""
    where = f"{path}: place {entry.get('match', index)!r}"
    problems += unknown_keys(entry, PLACE_KEYS, where)
    take = _Taker(entry, where, problems)
    match = take("match", str, "", bool)
    if "match" not in entry:
        take.wrong("match is missing", 'say which graph nodes or input, as in match = "/backbone/*"')
    on = take.texts("on")
    for name in on:
        if name not in names:
            hint = did_you_mean(name, names)
            problems.append(InputError("fleet-node-unknown", f"{where}: {name!r} is not a node", hint=hint))
    if not entry.keys() & {"on", *FACTS}:
        take.wrong("it does not say where", 'add on = ["NODE"], or a zone, trust or provides')
    return Place(match, on, _wanted(take))


def _wanted(take: _Taker) -> Wanted:
    return Wanted(take.texts("zone"), take.texts("trust"), take.texts("provides"))


def _cores(cpus: list[Any]) -> bool:
    return all(type(cpu) is int and cpu >= 0 for cpu in cpus) and len(set(cpus)) == len(cpus)


class _Taker:
    """Takes values out of one table, each of its right type; what is wrong is noted and the default taken."""

    def __init__(self, entry: Mapping[str, Any], where: str, problems: list[RuvError]) -> None:
        self.entry, self.where, self.problems = entry, where, problems

    def __call__(self, key: str, kind: type, default: Any, right: Callable[[Any], object] = lambda _: True) -> Any:
        value = self.entry.get(key, default)
        if key not in self.entry or (type(value) is kind and right(value)):
            return value
        self.wrong(f"{key} = {value!r} is not right", f"it is {_FORMS.get(key, _KINDS[kind])}")
        return default

    def texts(self, key: str, *, single: bool = True) -> tuple[str, ...]:
        """A list of texts, or where ``single`` one of them by itself; an empty one asks for what cannot be."""
        value = self.entry.get(key)
        if key not in self.entry or (value == [] and not single):
            return ()
        texts = [value] if single and isinstance(value, str) else value
        if isinstance(texts, list) and texts and all(isinstance(text, str) and text for text in texts):
            return tuple(dict.fromkeys(texts))
        kind = "text in quotes, or a list of texts" if single else "a list of texts"
        self.wrong(f"{key} = {value!r} is not right", f"it is {kind}")
        return ()

    def unit(self, key: str, parse: Callable[[str | int], _N]) -> _N | None:
        if key not in self.entry:
            return None
        try:
            return parse(self.entry[key])
        except ValueError as error:
            self.wrong(f"{key}: {error}", f'as in {key} = "{_EXAMPLES[key]}"')
            return None

    def wrong(self, what: str, hint: str) -> None:
        self.problems.append(InputError("fleet-wrong", f"{self.where}: {what}", hint=hint))
