"""Company: processes that do the same steps on other cores while something is measured.

Two busy cores cost each other some per cent: they share a cache, the way to memory, and the heat that the package may
give off. Stages that will work side by side on a machine are therefore measured side by side.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from ruvrun import machine
from ruvrun.bundle import StageSpec, load_spec
from ruvrun.errors import MachineError
from ruvrun.executors import load_graph
from ruvrun.profile import decoder
from ruvrun.profile.children import child
from ruvrun.profile.conditions import Conditions
from ruvrun.profile.graph import graph_inputs
from ruvrun.profile.places import ground
from ruvrun.profile.sheet import load_sheet
from ruvrun.scratch import scratch_folder
from ruvrun.supervise.kept import kept

PATIENCE = 120.0


def with_cores(conditions: Conditions) -> Conditions:
    """The conditions with cores for this process and for each companion, where there is company and none were named.

    No more companions work than there are cores for: stages that share a core take turns, which is no company.
    """
    if conditions.beside < 2 or len(conditions.cpus) >= conditions.beside:
        return conditions
    known = sorted(machine.allowed())
    named = list(conditions.cpus)
    free = [cpu for cpu in known if not any(cpu in group for group in named)]
    while len(named) < conditions.beside and len(free) >= conditions.threads:
        named.append(tuple(free[: conditions.threads]))
        free = free[conditions.threads :]
    return replace(conditions, cpus=tuple(named))


@contextlib.contextmanager
def company(directory: Path, conditions: Conditions) -> Iterator[Callable[[], None]]:
    """Let the stage in ``directory`` work in as many other processes as the conditions have cores for, at once.

    Yields:
        What returns when all of them are at work: they load meanwhile.

    Raises:
        MachineError: one of them does not get to work.
    """
    groups = conditions.cpus[1 : conditions.beside]
    if not groups:
        yield lambda: None
        return
    with scratch_folder("ruvrun") as folder:
        files = [folder / f"{number}" for number in range(len(groups))]
        started = [
            child(directory, ["--role", "beside"], conditions.threads, cpus, file)
            for cpus, file in zip(groups, files, strict=True)
        ]
        with kept(started) as failed:

            def ready() -> None:
                until = time.monotonic() + PATIENCE
                while not all(file.is_file() for file in files):
                    if failed:
                        raise failed[0]
                    if time.monotonic() > until:
                        what = "a process that works beside does not begin"
                        raise MachineError(
                            "company-late", what, hint="make memory free, or measure with a smaller --beside"
                        )
                    time.sleep(0.02)

            yield ready
            if failed:
                raise failed[0]


def keep_company(directory: Path, threads: int, file: Path) -> None:
    """What a companion does until it is ended: the steps of a stage. ``file`` appears when it begins."""
    spec = load_spec(directory)
    for turn in itertools.cycle(_turns(directory, spec, threads)):
        turn()
        if not file.exists():
            file.touch()


def _turns(directory: Path, spec: StageSpec, threads: int) -> list[Callable[[], object]]:
    if spec.kind == "graph":
        executor, inputs = load_graph(directory, spec, threads=threads), graph_inputs(directory, spec)
        return [lambda: executor.run(inputs)]
    where = ground(spec, load_sheet(directory, spec).context)
    loaded = decoder.load(directory, spec, where, threads)
    given = decoder.inputs_of(spec, where.slots)
    steps = [place for place in where.places if place.tokens == 1 and place.depth == where.usual.depth]
    return [decoder.runner(loaded.executor, given, place) for place in steps]
