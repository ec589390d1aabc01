"""The head's driver, put together: links, an engine for each pipeline, and what the manifest says of both."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from ruvrun.backends import COPYING, at_work, shared_by
from ruvrun.engine import Engine
from ruvrun.engine.groups import groups_of
from ruvrun.manifest import Manifest, Pipeline, Space
from ruvrun.manifest.blocks import BLOCK
from ruvrun.pipeline.calls import Calls
from ruvrun.pipeline.chunks import prompts_beside
from ruvrun.pipeline.driver import Driver
from ruvrun.pipeline.ring import Ring
from ruvrun.pipeline.sockets import largest_part, open_sockets
from ruvrun.placement import Endpoints


def open_driver(
    manifest: Manifest,
    endpoints: Endpoints,
    bundle: Path,
    space: Space,
    *,
    on_change: Callable[[str, str, str], None] = lambda _name, _state, _why: None,
    serving: bool = False,
    reuse: bool = False,
) -> Driver:
    """A driver that is not started yet.

    Args:
        manifest: what is served.
        endpoints: where the stages are, and where the head listens.
        bundle: the bundle of the head's node, for its key.
        space: key/value space of each pipeline; every stage must have been started with the same.
        on_change: as for ``Driver``.
        serving: whether people are served: a lost stage is waited for; prompts that begin alike are computed once, and
            go in small chunks beside those who decode, where all stages can do so. Else prompts are given to measure
            what they cost, and what decoding costs behind them: each is computed, at once.
        reuse: prompts that begin alike are computed once though nobody is served: to measure decoding alone.
    """
    # Stages that outlive a head keep the epoch they have seen, so a new head begins above it.
    epoch = time.time_ns() // 1_000_000
    work: list[Engine | Calls] = []
    for pipeline in manifest.pipeline:
        if manifest.program.kind == "decoder":
            work.append(engine_of(manifest, pipeline, space, epoch, serving=serving, reuse=reuse))
        else:
            work.append(Calls(stages=len(pipeline.stages), epoch=epoch, largest=largest_part(manifest)))
    sockets = open_sockets(manifest, manifest.head.node, bundle, endpoints, streams=space.streams)
    ring = Ring(manifest, endpoints, bundle, transport=sockets)
    return Driver(manifest, ring, *work, on_change=on_change, serving=serving)


def engine_of(
    manifest: Manifest, pipeline: Pipeline, space: Space, epoch: int, *, serving: bool, reuse: bool = False
) -> Engine:
    """The engine of one pipeline; arguments as for ``open_driver``.

    A back end that cannot copy computes a prompt with other last digits where it is divided otherwise. There no prompt
    begins with another's.

    Sequences share their space where all stages have theirs in blocks. How many groups they form is as the plan's times
    say, where it has some of every stage.
    """
    backends = {manifest.stage[placed.stage].backend for placed in pipeline.stages}
    expected = [manifest.plan.of(placed.node) for placed in pipeline.stages]
    beside, ragged = prompts_beside(backends, expected) if serving else ((), False)
    streams = at_work(backends, space.streams)
    steps = [
        [ms for rows in range(1, streams + 1) if (ms := each.step_ms(rows)) is not None]
        for each in expected
        if each is not None
    ]
    return Engine(
        stages=len(pipeline.stages),
        context=space.context,
        streams=streams,
        groups=groups_of(steps) if len(steps) == len(expected) else (),
        beside=beside,
        ragged=ragged,
        epoch=epoch,
        reuse=BLOCK if (serving or reuse) and backends <= COPYING else 0,
        pool=shared_by(backends, space.context, space.streams),
    )
