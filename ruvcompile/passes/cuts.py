"""Where a graph may be cut, and what crosses each cut.

``units`` lists the graph in one topological order; a *cut* ``k`` lies between the first ``k`` units and the
rest. What crosses it is what travels on the link:

* ``made``: values that a unit before the cut makes and a unit after it reads;
* ``inputs``: graph inputs that a unit after the cut reads. They enter at the first stage and are handed on;
* ``results``: graph outputs made before the cut, and graph inputs that are themselves graph outputs. Nobody
  reads them any more; they are relayed to the end of the pipeline.

Weights never cross: each stage holds what it reads, so a weight read on both sides is in both. A cut is legal
when everything that crosses may cross (``units`` has the rules).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ruvcompile.passes.groups import group
from ruvcompile.passes.units import CARRIED, Unit, refusals, units


@dataclass(frozen=True)
class Boundary:
    """What crosses one cut (see the module's text). ``reason`` says why the cut is not legal, else is empty."""

    made: tuple[str, ...]
    inputs: tuple[str, ...]
    results: tuple[str, ...]
    reason: str

    @property
    def legal(self) -> bool:
        """Whether the graph may be cut here."""
        return not self.reason

    @property
    def tensors(self) -> tuple[str, ...]:
        """Everything that travels on the link, each once."""
        return tuple(dict.fromkeys((*self.made, *self.inputs, *self.results)))


@dataclass(frozen=True)
class Ports:
    """The interface of a stage: what its graph takes and makes, and what it sends on (``forward``).

    ``forward`` names the tensors for the next stage, or for the last stage the program's results; those that
    are not among ``outputs`` are relayed as they came.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    forward: tuple[str, ...]


def boundary(units: Sequence[Unit], k: int) -> Boundary:
    """What crosses the cut between the first ``k`` of ``units`` and the rest. ``k`` is 1 to ``len(units) - 1``."""
    if not 0 < k < len(units):
        raise ValueError(f"no cut {k} in {len(units)} units")
    inside = {name for unit in units[k:] for name in unit.outputs}
    wanted = {name for unit in units[k:] for name in unit.inputs if name not in inside}
    made = dict.fromkeys(name for unit in units[:k] for name in unit.outputs)
    relays = [name for unit in units[k:] for name in unit.relays]
    results = dict.fromkeys((*(name for unit in units[:k] for name in unit.results), *relays))
    return _judge(
        tuple(name for name in made if name in wanted),
        tuple(name for name in _entering(units) if name in wanted),
        tuple(name for name in results if name not in wanted),
        refusals(units),
    )


def boundaries(units: Sequence[Unit]) -> tuple[Boundary, ...]:
    """All cuts of ``units`` at once, ``k`` = 1 to ``len(units) - 1``, in one sweep from the first unit to the last."""
    refused = refusals(units)
    last = {name: number for number, unit in enumerate(units) for name in unit.inputs}
    made: dict[str, None] = {}
    inputs = dict.fromkeys(_entering(units))
    results: dict[str, None] = {}
    relays = [name for unit in units for name in unit.relays]
    found: list[Boundary] = []
    for number, unit in enumerate(units[:-1]):
        made.update((name, None) for name in unit.outputs)
        results.update((name, None) for name in unit.results)
        for name in (*unit.inputs, *unit.outputs):
            if last.get(name, -1) <= number:
                made.pop(name, None)
                inputs.pop(name, None)
        crossing = tuple(name for name in dict.fromkeys((*results, *relays)) if name not in made and name not in inputs)
        found.append(_judge(tuple(made), tuple(inputs), crossing, refused))
    return tuple(found)


def ports(units: Sequence[Unit], start: int, stop: int) -> Ports:
    """The interface of the stage that holds ``units[start:stop]``."""
    own = units[start:stop]
    made = dict.fromkeys(name for unit in own for name in unit.outputs)
    inputs = tuple(dict.fromkeys(name for unit in own for name in unit.inputs if name not in made))
    if stop < len(units):
        forward = boundary(units, stop).tensors
    else:
        forward = tuple(dict.fromkeys(name for unit in units for name in (*unit.results, *unit.relays)))
    return Ports(inputs, tuple(name for name in forward if name in made), forward)


def _entering(units: Sequence[Unit]) -> tuple[str, ...]:
    """The graph inputs that are read, in the order in which they are first read."""
    made = {name for unit in units for name in unit.outputs}
    return tuple(dict.fromkeys(name for unit in units for name in unit.inputs if name not in made))


def _judge(
    made: tuple[str, ...], inputs: tuple[str, ...], results: tuple[str, ...], refused: Mapping[str, str]
) -> Boundary:
    reason = next((f"{name} {refused[name]}" for name in (*made, *inputs, *results) if name in refused), "")
    return Boundary(made, inputs, results, reason)


__all__ = ["CARRIED", "Boundary", "Ports", "Unit", "boundaries", "boundary", "group", "ports", "units"]
