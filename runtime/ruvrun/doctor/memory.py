"""Whether what is to run here fits: alone, and together with the other models of this machine.

A release that install.sh put down lies in ``.../opt/ruvrun/NAME/releases/ID`` and so knows its neighbours: the other
names' ``current``. All of them have to fit at once, whatever happens to be running at the moment; what runs in this
release's own place ends before it starts, so that it does not count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ruvrun import machine
from ruvrun.doctor.finding import Finding
from ruvrun.errors import FitError, RuvError
from ruvrun.machine import Need, size
from ruvrun.manifest import reserve
from ruvrun.placement import Placement, place, space

RELEASES = "releases"
CURRENT = "current"


def memory(placement: Placement) -> Iterator[Finding]:
    """The sum of weights, key/value at the planned context, and what processes take."""
    wanted = needs_of(placement)
    home = home_of(placement.path)
    beside = {} if home is None else _neighbours(home)
    available = machine.memory_available() if home is None else _usable()
    available -= sum(need.total for needs in beside.values() for need in needs)
    planned = space(placement.manifest, None, None)
    try:
        machine.require_memory(wanted, max(0, available), context=planned.context, streams=planned.streams)
    except FitError as error:
        others = [f"{name} needs {size(sum(need.total for need in needs))}" for name, needs in sorted(beside.items())]
        hint = f"uninstall one of the others ({', '.join(sorted(beside))}), or " if beside else ""
        seen = "; ".join([error.message, *error.context, *others])
        yield Finding("memory", "fail", seen, f"{hint}{error.hint}", error.exit_code)
        return
    total = sum(need.total for need in wanted)
    seen = f"{size(total)} needed ({'; '.join(map(str, wanted))}), {size(available)} available"
    if total <= machine.memory_available():
        yield Finding("memory", "ok", seen)
    else:  # only of what is installed
        why = "what runs in its place counts until it ends; anything else has to leave room"
        hint = "look what takes it: ps -eo rss,comm --sort -rss | head"
        yield Finding("memory", "warn", f"{seen}, of which {size(machine.memory_available())} now", hint, 0, why)


def needs_of(placement: Placement) -> list[Need]:
    """What the stages of a placement need, with the space that was planned for them."""
    planned = space(placement.manifest, None, None)
    return machine.needs(placement.manifest, placement.stages, context=planned.context, streams=planned.streams)


def home_of(path: Path) -> Path | None:
    """The folder of the model that the release at ``path`` is installed as; None for what is not installed."""
    directory = path.resolve() if path.is_dir() else path.resolve().parent
    home = directory.parent.parent
    return home if directory.parent.name == RELEASES and home.parent.name == "ruvrun" else None


def _neighbours(home: Path) -> dict[str, list[Need]]:
    found = {}
    for other in sorted(home.parent.iterdir()):
        if other != home and (other / CURRENT).is_dir():
            try:
                found[other.name] = needs_of(place(other / CURRENT))
            except RuvError:  # it cannot run as it is, and takes nothing
                continue
    return found


def _usable() -> int:
    """What the machine has, less what is left to all else: as a build counts it."""
    installed = machine.memory_total()
    return installed - reserve(installed)
