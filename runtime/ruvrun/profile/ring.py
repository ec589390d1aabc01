"""A stage at work in a real ring of processes, and what it, the head and the way between them take.

The head is the driver in this process, as ``ruvrun bench`` has it; the stage is a process of its own (``clocked``). Of
every round, from the moment when the last sequence has got its token to the next such moment, the clock and this
process's CPU time are noted, without what noting them takes; what the stage did it says when it ends.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import msgspec
import numpy as np

from ruvrun.bench import GREEDY, prompts
from ruvrun.elements import Value
from ruvrun.engine import Lost, Request
from ruvrun.errors import MachineError, UnreachableError
from ruvrun.frames import Sampling
from ruvrun.manifest import Manifest, Space
from ruvrun.pipeline.driver import Driver, Event
from ruvrun.pipeline.head import open_driver
from ruvrun.profile.alone import Alone
from ruvrun.profile.children import child
from ruvrun.profile.clocked import Count
from ruvrun.profile.conditions import Conditions
from ruvrun.supervise.kept import kept

PROMPT = 8
SETTLED = 4
"""Tokens after which all sequences decode together."""

PATIENCE = 120.0


@dataclass(frozen=True)
class Rounds:
    """What the head saw: milliseconds of each round by the clock, and of its own CPU time in each."""

    rows: int
    ms: Sequence[float]
    head_ms: Sequence[float]


@dataclass(frozen=True)
class Steps:
    """What the stage counted in steps of so many rows, in ms: inside the back end, and what it did from its end to the
    next one; ``slowed``, by how much longer anything takes there than its CPU time, where a quota limits that.
    """

    inside_ms: Sequence[float]
    beside_ms: Sequence[float]
    slowed: float = 1.0


class StageRing:
    """A ring of one stage, ready.

    Args:
        manifest: of the one stage.
        driver: of it.

    ``carried`` is how many bytes of tensors a call of a graph brings and takes, once one was made.
    """

    def __init__(self, manifest: Manifest, driver: Driver) -> None:
        self._manifest, self._driver = manifest, driver
        self.carried = 0

    def decode(self, rows: int, rounds: int, sampling: Sampling = GREEDY) -> Rounds:
        """Rounds of ``rows`` sequences.

        Raises:
            UnreachableError: the stage was lost.
        """
        manifest, driver = self._manifest, self._driver
        watch = _Watch(rows, rounds)
        names = [driver.next_id() for _ in range(rows)]
        for name, text in zip(names, prompts(manifest, rows, prompt_tokens(manifest.program.context)), strict=True):
            driver.submit(Request(name, text, tokens(rows, rounds), sampling, frozenset()), watch)
        moments = watch.wait()
        for name in names:
            driver.cancel(name)
        return _rounds(rows, moments)

    def call(self, inputs: Mapping[str, Value], rounds: int) -> Rounds:
        """Calls of a graph, one after the other."""
        outputs = self._driver.run(inputs)
        self.carried = sum(
            value.nbytes for value in (*inputs.values(), *outputs.values()) if isinstance(value, np.ndarray)
        )
        moments = [_now()]
        for _ in range(rounds):
            self._driver.run(inputs)
            moments.append(_now())
        return _rounds(1, moments)


_Moment = tuple[float, float, float]


class _Watch:
    """Called with every token: notes the moments when the last of ``rows`` sequences has got one more."""

    def __init__(self, rows: int, rounds: int) -> None:
        self._wanted = range(SETTLED, SETTLED + rounds + 1)
        self._left = dict.fromkeys(self._wanted, rows)
        self._moments: list[_Moment] = []
        self._got: dict[int, int] = {}
        self._over = threading.Event()
        self._lost = ""

    def __call__(self, event: Event) -> None:
        if isinstance(event, Lost):
            self._lost = event.why
            self._over.set()
            return
        got = self._got[event.id] = self._got.get(event.id, 0) + 1
        if got in self._left:
            self._left[got] -= 1
            if not self._left[got]:
                self._moments.append(_now())
                if got == self._wanted[-1]:
                    self._over.set()

    def wait(self) -> list[_Moment]:
        if not self._over.wait(PATIENCE):
            self._lost = f"no answer within {PATIENCE:.0f} s"
        if self._lost:
            raise UnreachableError("stage-lost", self._lost, hint="measure again; see what else runs here")
        return self._moments


def prompt_tokens(context: int) -> int:
    """Of each sequence."""
    return min(PROMPT, max(1, context // 4))


def tokens(rows: int, rounds: int) -> int:
    """How many each sequence may get: who begins first is ahead when the last one begins, and must not end before it.

    A prompt is a step of its own, and those who have begun decode between two of them.
    """
    return SETTLED + rounds + 2 * rows + 4


def _now() -> _Moment:
    """The clock, this process's CPU time, and the clock again: asking the kernel with cold caches takes a while."""
    return time.perf_counter(), time.process_time(), time.perf_counter()


def _rounds(rows: int, moments: Sequence[_Moment]) -> Rounds:
    ms = [1e3 * (after[0] - before[2]) for before, after in pairwise(moments)]
    own = [1e3 * (after[1] - before[1] - (before[2] - before[0])) for before, after in pairwise(moments)]
    return Rounds(rows, ms, own)


def steps_of(count: Count, rows: int) -> Steps:
    """The decoding steps of ``rows`` rows that another such step follows."""
    pairs = [(a, b) for a, b in pairwise(count.ticks) if a.rows == b.rows == a.tokens == b.tokens == rows]
    inside = [1e3 * (tick.left - tick.entered) for tick, _ in pairs]
    beside = [1e3 * (after.entered - tick.left) for tick, after in pairs]
    if not count.limited:
        return Steps(inside, beside)
    took = [1e3 * tick.took for tick, _ in pairs]
    slowed = max(1.0, sum(took) / max(sum(inside), 1e-9))
    return Steps(took, [slowed * ms for ms in beside], slowed)


@contextlib.contextmanager
def stage_ring(alone: Alone, conditions: Conditions, space: Space) -> Iterator[tuple[StageRing, list[Count]]]:
    """The stage as a process, with a driver here; gone at the end.

    Args:
        alone: the stage.
        conditions: its threads and cores.
        space: key/value space.

    Yields:
        The ring, and a list that holds what the stage counted, once it is gone.
    """
    counts: list[Count] = []
    file = alone.folder / "count.json"
    argv = [
        *("--role", "stage", "--ring", str(alone.folder)),
        *("--endpoints", msgspec.json.encode(alone.endpoints).decode()),
        *("--context", str(space.context), "--streams", str(space.streams)),
    ]
    stage = child(alone.directory, argv, conditions.threads, conditions.cpus[0] if conditions.cpus else (), file)
    with kept([stage]) as failed, _driving(alone, space) as driver:
        while not driver.wait_ready(0.1):
            if failed:
                raise failed[0]
        yield StageRing(alone.manifest, driver), counts
    if not file.is_file():
        raise MachineError("stage-killed", "the stage that was measured did not end by itself", hint="measure again")
    counts.append(msgspec.json.decode(file.read_bytes(), type=Count))


@contextlib.contextmanager
def _driving(alone: Alone, space: Space) -> Iterator[Driver]:
    driver = open_driver(alone.manifest, alone.endpoints, alone.folder, space)
    driver.start()
    try:
        yield driver
    finally:
        driver.stop()
