"""``fleet.toml``: read as a whole, and everything that is wrong with it told at once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruvcompile.configuration import read_configuration, unknown_keys
from ruvcompile.errors import InputError, RuvError, did_you_mean, raise_all
from ruvcompile.fleet.entries import read_link, read_node, read_place, read_require
from ruvcompile.fleet.governance import Wanted
from ruvcompile.fleet.machines import MOST_NODES, Fleet, FleetNode, Link

KEYS = ("format", "head", "node", "link", "require", "place")


def load_fleet(path: Path) -> Fleet:
    """Read ``fleet.toml``; everything that is wrong with it is told at once.

    Raises:
        InputError: the file is missing, is not TOML, or says something that cannot be.
    """
    raw = read_configuration(path, "fleet file")
    problems: list[RuvError] = unknown_keys(raw, KEYS, str(path))
    entries = _tables(raw, "node", problems, path)
    nodes = [read_node(entry, index, problems, path) for index, entry in enumerate(entries)]
    names = [node.name for node in nodes]
    if not nodes and not problems:
        problems.append(InputError("fleet-empty", f"{path} names no node", hint="add a [[node]] table"))
    if len(nodes) > MOST_NODES:
        told = f"{path} names {len(nodes)} nodes, more than one fleet may have, {MOST_NODES}"
        raise InputError("fleet-too-large", told, hint="make several fleets of them, behind one HAProxy")
    _check_twice(nodes, problems, path)
    head = raw.get("head", names[0] if names else "")
    if names and head not in names:
        hint = did_you_mean(str(head), names)
        problems.append(InputError("head-unknown", f"{path}: head {head!r} is not a node", hint=hint))
    default_link, pairs = _links(raw, names, problems, path)
    require = raw.get("require", {})
    if not isinstance(require, dict):
        problems.append(InputError("fleet-wrong", f"{path}: require is not a table", hint="write [require], once"))
    wanted = read_require(require, problems, path) if isinstance(require, dict) else Wanted()
    places = [
        read_place(entry, index, names, problems, path)
        for index, entry in enumerate(_tables(raw, "place", problems, path))
    ]
    raise_all(problems)
    return Fleet(tuple(nodes), head, default_link, pairs, path, wanted, tuple(places))


def _tables(raw: Mapping[str, Any], key: str, problems: list[RuvError], path: Path) -> list[dict[str, Any]]:
    found = raw.get(key, [])
    if isinstance(found, list) and all(isinstance(entry, dict) for entry in found):
        return found
    problems.append(InputError("fleet-wrong", f"{path}: {key} is not a list of tables", hint=f"write [[{key}]]"))
    return []


def _check_twice(nodes: Sequence[FleetNode], problems: list[RuvError], path: Path) -> None:
    """Names are the nodes' own; so is what they listen on, but that local ones get ports that are free."""
    for name in _twice([node.name for node in nodes if node.name]):
        problems.append(
            InputError("node-twice", f"{path}: node {name!r} is there twice", hint="give each its own name")
        )
    known = {node.name: node for node in nodes}.values()
    for address, port in _twice([(node.address, node.port) for node in known if not node.local]):
        both = [node.name for node in known if (node.address, node.port) == (address, port)]
        what = f"{path}: nodes {' and '.join(both)} both listen on {address}:{port}"
        problems.append(InputError("address-twice", what, hint="give each its own address, or its own port"))


def _links(
    raw: Mapping[str, Any], names: Sequence[str], problems: list[RuvError], path: Path
) -> tuple[Link | None, dict[tuple[str, str], Link]]:
    found = [read_link(entry, names, problems, path) for entry in _tables(raw, "link", problems, path)]
    for ends in _twice([ends or ("", "") for ends, _ in found]):
        what = f"link {ends[0]} -> {ends[1]} is there twice" if ends[0] else "the default link is there twice"
        hint = "keep one of them" if ends[0] else "keep one of them, and give the others from and to"
        problems.append(InputError("link-twice", f"{path}: {what}", hint=hint))
    default = next((link for ends, link in found if ends is None), None)
    return default, {ends: link for ends, link in found if ends is not None}


def _twice(found: Sequence[Any]) -> list[Any]:
    return sorted(each for each, count in Counter(found).items() if count > 1)
