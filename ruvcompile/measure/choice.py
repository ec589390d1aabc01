"""Which back ends of a machine are looked at, where it has several.

Where the given tables know any of them whole, those are the choice, and nothing is measured. Else all that are
installed here are measured: the first one fully, the others briefly. One that cannot run this model at all is no
choice, and a word says so; it is no error as long as another one can.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence

from ruvcompile.errors import InputError
from ruvcompile.measure import held
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.targets import Target
from ruvrun.backends import BACK_ENDS, package_of
from ruvrun.costs import CostTable


def given(
    program: Program, keys: Sequence[str], known: CostTable, target: Target, threads: int, beside: int | None
) -> CostTable | None:
    """What the tables know of a machine, all its back ends together; None where none of them is known whole."""
    if not any(held(program, keys, known, target.name, each, threads, beside) for each in target.backends):
        return None
    return of_kind(keys, known, target, threads)


def of_kind(keys: Sequence[str], known: CostTable, target: Target, threads: int) -> CostTable:
    """The rows of a model's units, and what a step costs beside them, on any back end of one kind of machine."""
    wanted = set(keys)
    kinds = {(target.name, backend, threads) for backend in target.backends}
    return CostTable(
        provenance=known.provenance,
        unit=[row for row in known.unit if row.key in wanted and (row.target, row.backend, row.threads) in kinds],
        overhead=[row for row in known.overhead if (row.target, row.backend, row.threads) in kinds],
    )


def each_measured(target: Target, run: Callable[..., CostTable], progress: Progress) -> dict[str, CostTable]:
    """What ``run`` measures of every back end of ``target`` that is installed here, by its name.

    Args:
        run: measures a ``backend``, briefly where it is given what was measured of another one (``beyond``).
        progress: told of back ends that are no choice.

    Raises:
        InputError: as ``run``, where there is no other back end.
    """
    found: dict[str, CostTable] = {}
    for backend in installed(target, progress):
        try:
            found[backend] = run(backend=backend, beyond=next(iter(found.values()), None))
        except InputError as error:
            if not found:
                raise
            progress.note(f"{BACK_ENDS[backend].title} is no choice for this model: {error.message}")
    return found


def installed(target: Target, progress: Progress) -> tuple[str, ...]:
    """The back ends of ``target`` that are installed here; the only one whether or not it is, to say so later."""
    if len(target.backends) == 1:
        return target.backends
    there = tuple(each for each in target.backends if importlib.util.find_spec(package_of(each)) is not None)
    if missing := [each for each in target.backends if each not in there]:
        told = " and ".join(BACK_ENDS[each].title for each in missing)
        extras = ",".join(package_of(each) for each in missing)
        progress.note(f"{told} is not installed here, so it is no choice (pip install 'ruvcompile[{extras}]')")
    return there or target.backends[:1]
