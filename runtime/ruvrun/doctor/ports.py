"""Whether the ports are free that this machine's part listens at, and if not, who has them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ruvrun import machine
from ruvrun.doctor.finding import Finding
from ruvrun.doctor.memory import home_of
from ruvrun.placement import Placement

_LISTENING = "0A"


def ports(placement: Placement, http: int | None, root: Path) -> Iterator[Finding]:
    """A port that this very service holds is as good as a free one."""
    wanted: dict[str, int] = {}
    if not placement.whole:  # else its links need none
        wanted |= {f"port of {name}": placement.endpoints.nodes[name].port for name in placement.stages}
        if placement.head:
            wanted["port of the head"] = placement.endpoints.head.port
    if http is not None and placement.head:
        wanted["port of HTTP"] = http
    for what, port in wanted.items():
        if machine.port_is_free("0.0.0.0", port):
            yield Finding(what, "ok", f"{port} is free")
            continue
        holder = holder_of(port, root)
        if holder is None:
            hint = f"look who has it, and end it unless it is this service: sudo ss -ltnp 'sport = :{port}'"
            yield Finding(what, "warn", f"{port} is taken", hint, 7)
        elif _is_ours(holder[1], placement):
            yield Finding(what, "ok", f"{port} is this service's (process {holder[0]})")
        else:
            seen = f"{port} is taken by process {holder[0]}: {' '.join(holder[1])[:80]}"
            option = "--port" if what == "port of HTTP" else "nodes.toml, on all nodes"
            yield Finding(what, "fail", seen, f"end it, or take another port: {option}", 7)


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
