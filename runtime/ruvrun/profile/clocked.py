"""A stage's process that keeps count of its own CPU time: inside the back end, and between two steps.

It is the process that ``ruvrun serve`` starts, but for a clock around the executor. So what a step costs beside the
back end's work is the time from one step's end to the next one's begin, of the same process at the same step: no
difference of two large numbers of two processes, each of which has its own luck with where its memory lies.

Where a quota stops the process part of the time, the clock tells how long its steps take. Between two steps it has
waited for the others as well, so what it did there is its CPU time, as much longer as the steps were.

What was counted is written when the process ends.
"""

from __future__ import annotations

import operator
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn, cast

import msgspec

from ruvrun.bundle import verify_bundle
from ruvrun.elements import Value
from ruvrun.executors import Array, DecoderExecutor, GraphExecutor, PooledExecutor, Span, back_end, load_executor
from ruvrun.machine import has_cpu_quota, peak_bytes
from ruvrun.pipeline.sockets import largest_part, open_sockets
from ruvrun.pipeline.worker import Worker
from ruvrun.profile.alone import NODE, Alone
from ruvrun.stage import Stage

_COUNT = operator.attrgetter("count")


class Tick(msgspec.Struct, frozen=True, array_like=True):
    """One step: its rows and tokens, the thread's CPU time when it entered and left the back end, and how long it was
    there by the clock, in seconds.
    """

    rows: int
    tokens: int
    entered: float
    left: float
    took: float


class Count(msgspec.Struct, frozen=True):
    """What a process counted: its steps, the most memory it had held with its back end imported, once loaded, and in
    all, and whether a quota limits its CPU time.
    """

    ticks: list[Tick]
    bare_bytes: int
    loaded_bytes: int
    peak_bytes: int
    limited: bool = False


class Clocked:
    """An executor of either kind with a clock around it."""

    def __init__(self, inner: DecoderExecutor | GraphExecutor) -> None:
        self.ticks: list[Tick] = []
        self._inner = inner
        self.slots = getattr(inner, "slots", 0)
        self.context = getattr(inner, "context", 0)
        if isinstance(inner, PooledExecutor):
            self.pool, self.sequences, self.grant = inner.pool, inner.sequences, inner.grant

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """See ``DecoderExecutor.step``."""
        rows, tokens = len(spans), sum(map(_COUNT, spans))
        inner: DecoderExecutor = self._inner  # type: ignore[assignment]  # it is one, where steps come
        entered, began = time.thread_time(), time.perf_counter()
        outputs = inner.step(spans, tensors)
        took, left = time.perf_counter() - began, time.thread_time()
        self.ticks.append(Tick(rows, tokens, entered, left, took))  # behind the back end, where all is cold, no more
        return outputs

    def run(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """See ``GraphExecutor.run``."""
        entered, began = time.thread_time(), time.perf_counter()
        outputs = cast(GraphExecutor, self._inner).run(tensors)
        took, left = time.perf_counter() - began, time.thread_time()
        self.ticks.append(Tick(1, 1, entered, left, took))
        return outputs


def serve_clocked(alone: Alone, *, context: int, streams: int, threads: int, file: Path) -> None:
    """Serve the stage until SIGTERM, then write the ``Count`` to ``file``.

    Raises:
        RuvError: as ``ruvrun.stage.serve``.
    """
    clocks: list[Clocked] = []
    held = [0, 0]

    def load() -> Worker:
        spec = verify_bundle(alone.directory, alone.manifest, 0)
        back_end(spec)
        held[0] = peak_bytes()
        clocks.append(Clocked(load_executor(alone.directory, spec, context=context, slots=streams, threads=threads)))
        held[1] = peak_bytes()
        return Worker(clocks[0], spec, largest=largest_part(alone.manifest))

    def leave(_number: int, _frame: FrameType | None) -> NoReturn:
        ticks = clocks[0].ticks if clocks else []
        partial = file.with_name(f".{file.name}.partial")
        partial.write_bytes(msgspec.json.encode(Count(ticks, held[0], held[1], peak_bytes(), has_cpu_quota())))
        partial.replace(file)
        os._exit(0)

    signal.signal(signal.SIGTERM, leave)
    transport = open_sockets(alone.manifest, NODE, alone.folder, alone.endpoints)
    Stage(alone.manifest, NODE, alone.endpoints, transport, load, lambda _line: None).run()
