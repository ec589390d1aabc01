"""What this machine has, lacks and must change, before anything is loaded.

Every check is one ``Finding``: what was looked at, how it stands (``ok``, ``warn``, ``fail``), what was seen, why that
matters, and what to type. Nothing here changes anything, and a check that fails never keeps the others from running.

Each room looks at one kind of thing. Facts of the machine are files of ``/proc`` and ``/sys``; they are read below a
``root``, so that tests can build the machines that nobody has at hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ruvrun.doctor import board, software, stages, system
from ruvrun.doctor.finding import Finding
from ruvrun.doctor.memory import memory
from ruvrun.doctor.peers import peers as look_at_peers
from ruvrun.doctor.ports import ports
from ruvrun.doctor.selfcheck import selfcheck
from ruvrun.placement import place, space

ROOT = Path("/")


def examine(
    path: Path,
    node: str | None,
    *,
    peers: bool,
    http: int | None = None,
    context: int | None = None,
    streams: int | None = None,
    load: bool = False,
    root: Path = ROOT,
) -> Iterator[Finding]:
    """Look at everything this invocation would need; yields findings as they come.

    Args:
        path: the manifest, or the bundle directory.
        node: which node this machine is, where ``path`` does not say.
        peers: whether to look for the other nodes.
        http: the port of HTTP, where that is to be free too.
        context: positions per stream, where it is not to be as built.
        streams: whole contexts that there is space for, likewise.
        load: whether to load the stages and repeat their golden checks.
        root: where ``proc``, ``sys``, ``etc`` and ``run`` are.

    Raises:
        RuvError: there is nothing to look at: no manifest, or no bundle.
    """
    placement = place(path, node)
    asked = space(placement.manifest, context, streams)
    bundle = next(iter(placement.bundles.values()))
    yield from software.python()
    yield from software.packages(placement)
    yield from stages.bundles(placement)
    yield from stages.devices(placement)
    yield from memory(placement, asked)
    yield from stages.cpus(placement)
    yield from ports(placement, http, root)
    yield from board.board(bundle, root)
    yield system.disk(bundle)
    yield system.swap(root)
    yield system.clock(root)
    yield system.suspend(root)
    if not placement.whole:
        yield from system.network(root)
    if load:
        yield from selfcheck(placement, asked)
    if peers and not placement.whole:
        yield from look_at_peers(placement)


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """The object of ``doctor --json``."""
    return {"ok": all(finding.state != "fail" for finding in findings), "findings": [asdict(one) for one in findings]}


__all__ = ["Finding", "examine", "to_json"]
