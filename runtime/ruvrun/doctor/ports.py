"""Whether the ports are free that this machine's part listens at, and if not, who has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ruvrun import ports as machine_ports
from ruvrun.doctor.finding import Finding, failure, warning, well
from ruvrun.doctor.memory import home_of, neighbours
from ruvrun.placement import Placement

_LISTENING = "0A"


def ports(placement: Placement, http: int | None, root: Path) -> Iterator[Finding]:
    """A port that this very service holds is as good as a free one; one of another model that is installed is not."""
    why = "two services cannot listen at one port: this one would not start"
    wanted = _ports_of_links(placement)
    if http is not None and placement.head:
        wanted["port of HTTP"] = http
    home = home_of(placement.path)
    others = {} if home is None else neighbours(home)
    held = {port: name for name, other in others.items() for port in _ports_of_links(other).values()}
    for what, port in wanted.items():
        if port in held:
            seen = f"{port} is also that of ruvrun@{held[port]}, which is installed here"
            yield failure(what, seen, why, "give this one other ports: node/nodes.toml, on all of its nodes", 7)
            continue
        if machine_ports.port_is_free("0.0.0.0", port):
            yield well(what, f"{port} is free")
            continue
        holder = holder_of(port, root)
        if holder is None:
            hint = f"look who has it, and end it unless it is this service: sudo ss -ltnp 'sport = :{port}'"
            yield warning(what, f"{port} is taken", why, hint)
        elif _is_ours(holder[1], placement):
            yield well(what, f"{port} is this service's (process {holder[0]})")
        else:
            seen = f"{port} is taken by process {holder[0]}: {' '.join(holder[1])[:80]}"
            option = "--port" if what == "port of HTTP" else "node/nodes.toml, on all nodes"
            yield failure(what, seen, why, f"end it: sudo kill {holder[0]}; or take another port: {option}", 7)


def _ports_of_links(placement: Placement) -> dict[str, int]:
    """Where the processes of a placement listen for their peers; nowhere where all of them are here."""
    if placement.whole:
        return {}
    found = {f"port of {name}": placement.endpoints.nodes[name].port for name in placement.stages}
    return found | ({"port of the head": placement.endpoints.head.port} if placement.head else {})


def holder_of(port: int, root: Path) -> tuple[int, list[str]] | None:
    """Process and command line of who listens at ``port``; None where that cannot be seen."""
    inodes = {f"socket:[{inode}]" for name in ("tcp", "tcp6") for inode in _listening(root / "proc/net" / name, port)}
    for process in (root / "proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended, or is not ours to look at
            if any(_target(descriptor) in inodes for descriptor in (process / "fd").iterdir()):
                return int(process.name), (process / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
    return None


def _target(descriptor: Path) -> str:
    try:
        return str(descriptor.readlink())
    except OSError:  # it was closed meanwhile
        return ""


def _listening(table: Path, port: int) -> Iterator[str]:
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return
    for row in rows:
        if row[3] == _LISTENING and int(row[1].rpartition(":")[2], 16) == port:
            yield row[9]


def _is_ours(words: list[str], placement: Placement) -> bool:
    """Whether a process is a ``ruvrun serve`` of this manifest, or of another release in the same place."""
    home = home_of(placement.path)
    if "serve" not in words:
        return False
    paths = [Path(word) for word in words if word.endswith(".toml")]
    return any(
        path.resolve() == placement.path.resolve() or (home is not None and home_of(path) == home) for path in paths
    )
