"""A built pipeline whose head is this process, with an engine of one's own: to watch it, or with other chunks."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ruvrun import launch
from ruvrun.engine import Engine
from ruvrun.manifest import Space
from ruvrun.pipeline.driver import Driver
from ruvrun.pipeline.ring import Ring
from ruvrun.placement import Placement, place
from ruvrun.supervise import Process
from ruvrun.supervise.kept import kept

Stages = Callable[[Placement, launch.Settings], Sequence[Process]]


def stages(placement: Placement, settings: launch.Settings) -> Sequence[Process]:
    """The processes of the stages, as ``ruvrun bench`` starts them."""
    return launch.processes(placement, settings, None)


@contextlib.contextmanager
def driven(manifest: Path, engine: Engine, streams: int, start: Stages = stages) -> Iterator[Driver]:
    """A driver with all stages ready; they are gone at the end. This process is then on the head's cores."""
    placement = place(manifest)
    settings = launch.Settings(Space(context=engine.context, streams=streams))
    own = os.sched_getaffinity(0)
    with kept(start(placement, settings)) as failed:
        os.sched_setaffinity(0, launch.cpus_of(placement, settings, placement.manifest.head.node))
        driver = Driver(
            placement.manifest, Ring(placement.manifest, placement.endpoints, placement.head_bundle), engine
        )
        driver.start()
        try:
            while not driver.wait_ready(0.2):
                if failed:
                    raise failed[0]
            yield driver
        finally:
            driver.stop()
            os.sched_setaffinity(0, own)


def prompt(draws: random.Random, tokens: int) -> tuple[int, ...]:
    """Ordinary tokens of SmolLM2, another text each time."""
    return tuple(draws.randrange(1000, 40000) for _ in range(tokens))
