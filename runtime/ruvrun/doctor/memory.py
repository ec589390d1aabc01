"""Whether what is to run here fits: alone, and together with the other models of this machine.

A release that install.sh put down lies in ``.../opt/ruvrun/NAME/releases/ID`` and so knows its neighbours: the other
names' ``current``. All of them have to fit at once, whatever happens to be running at the moment; what runs in this
release's own place ends before it starts, so that it does not count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from ruvrun import machine
from ruvrun.amounts import show_bytes
from ruvrun.doctor.finding import Finding, failure, warning, well
from ruvrun.errors import FitError, RuvError
from ruvrun.manifest import Space, reserve
from ruvrun.needs import Need, needs, require_memory
from ruvrun.placement import Placement, place, space

RELEASES = "releases"
CURRENT = "current"


def memory(placement: Placement, asked: Space) -> Iterator[Finding]:
    """The sum of weights, key/value at the context that is asked for, and what processes take."""
    wanted = needs_of(placement, asked)
    home = home_of(placement.path)
    beside = {} if home is None else _needs_of_neighbours(home)
    available = machine.memory_available() if home is None else _usable()
    available -= sum(need.total for theirs in beside.values() for need in theirs)
    try:
        require_memory(wanted, max(0, available), context=asked.context, streams=asked.streams)
    except FitError as error:
        others = [f"{name} needs {show_bytes(sum(need.total for need in own))}" for name, own in sorted(beside.items())]
        hint = f"uninstall one of the others ({', '.join(sorted(beside))}), or " if beside else ""
        seen = "; ".join([error.message, *error.context, *others])
        why = "a service that takes more than there is is ended by the kernel, or swaps and answers nobody"
        yield failure("memory", seen, why, f"{hint}{error.hint}", error.exit_code)
        return
    total = sum(need.total for need in wanted)
    spoken = f" for {asked.streams} streams x {asked.context} tokens" if any(need.kv for need in wanted) else ""
    seen = f"{show_bytes(total)} needed{spoken} ({'; '.join(map(str, wanted))}), {show_bytes(available)} available"
    if total <= machine.memory_available():
        yield well("memory", seen)
    else:  # only of what is installed
        why = "what runs in its place counts until it ends; anything else has to leave room"
        hint = "look what takes it: ps -eo rss,comm --sort -rss | head"
        yield warning("memory", f"{seen}, of which {show_bytes(machine.memory_available())} now", why, hint)


def needs_of(placement: Placement, asked: Space) -> list[Need]:
    """What the stages of a placement need with this space."""
    return needs(placement.manifest, placement.stages, context=asked.context, streams=asked.streams)


def home_of(path: Path) -> Path | None:
    """The folder of the model that the release at ``path`` is installed as; None for what is not installed."""
    directory = path.resolve() if path.is_dir() else path.resolve().parent
    home = directory.parent.parent
    return home if directory.parent.name == RELEASES and home.parent.name == "ruvrun" else None


def neighbours(home: Path) -> dict[str, Placement]:
    """What else is installed on this machine, and could run as it is, by name."""
    found = {}
    for other in sorted(home.parent.iterdir()):
        if other != home and (other / CURRENT).is_dir():
            with contextlib.suppress(RuvError):
                found[other.name] = place(other / CURRENT)
    return found


def _needs_of_neighbours(home: Path) -> dict[str, list[Need]]:
    return {name: needs_of(other, space(other.manifest, None, None)) for name, other in neighbours(home).items()}


def _usable() -> int:
    """What the machine has, less what is left to all else: as a build counts it."""
    installed = machine.memory_total()
    return installed - reserve(installed)
