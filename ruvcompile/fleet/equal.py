"""A fleet of equal machines, from a target and a number or names."""

from __future__ import annotations

import ipaddress
import re

from ruvcompile.errors import UsageError
from ruvcompile.fleet.entries import NAME
from ruvcompile.fleet.machines import HOST, MOST_NODES, Fleet, FleetNode
from ruvrun.manifest import LOCAL


def make_fleet(target: str, nodes: str) -> Fleet:
    """A fleet of equal machines from ``--target`` and ``--nodes``.

    Args:
        target: name of the target; whether it exists is not asked here.
        nodes: a count, or host names with commas. With a count, nodes of target ``host`` are processes of
            this machine and others are ``TARGET-0`` at the address ``TARGET-0.local``.

    Raises:
        UsageError: ``nodes-invalid``: it is neither, or they are too many.
    """
    if re.fullmatch(r"-?[0-9]+", nodes):
        count = int(nodes)
        if count < 1:
            raise UsageError("nodes-invalid", f"--nodes {nodes} is not a number of nodes", hint="give at least 1")
        _require_few(count)
        names = [f"{target}-{index}" for index in range(count)]
        made = tuple(FleetNode(name, target, LOCAL if target == HOST else f"{name}.local") for name in names)
    else:
        names = [name.strip() for name in nodes.split(",")]
        wrong = [name for name in names if not _is_host(name)] or sorted({n for n in names if names.count(n) > 1})
        if wrong:
            raise UsageError(
                "nodes-invalid",
                f"--nodes {nodes}: {wrong[0]!r} is not a host name, or is named twice",
                hint="give a count, or host names with commas: --nodes pi-0.local,pi-1.local",
            )
        _require_few(len(names))
        made = tuple(FleetNode(name, target, address=name) for name in names)
    return Fleet(made, head=made[0].name)


def _is_host(name: str) -> bool:
    """Whether a machine may be called so. What is all digits and dots is an address or, as 1.5, a number gone wrong."""
    if re.fullmatch(r"[0-9.]+", name) is None:
        return NAME.fullmatch(name) is not None
    try:
        return bool(ipaddress.IPv4Address(name))
    except ValueError:
        return False


def _require_few(count: int) -> None:
    if count > MOST_NODES:
        hint = f"give at most {MOST_NODES}; more machines are several fleets, behind one HAProxy"
        raise UsageError("nodes-invalid", f"{count} nodes are more than one fleet may have, {MOST_NODES}", hint=hint)
