"""What the units of a decoder's stage cost, as curves, measured in place.

A layer that is run alone, again and again, sits in the cache and looks faster than it is; a profiler makes small
nodes look slower than they are. So:

1. The whole stage is run at every step, so that its weights pass through the caches as they will when it serves.
   A model that is too large for that is measured by one with some layers of each kind, which the compiler makes.
2. *Sizes* are medians of unprofiled steps: of 1 to 8 sequences at several depths of context, and of chunks of a prompt
   of several lengths (``places``). They are run in turn until their medians are known (``steady``).
3. *Shares* come from the profiler, place by place, after its overhead per kernel has been taken off each (``trace``): a
   matrix product grows with the rows, attention with the depth, and a norm with neither.
4. A unit's cost at a place is its share of the size. Layers of equal shape are averaged: they are one row.

What lies in the key/value space is nothing sensible, as attention takes equally long for it; but it has to lie there,
or all of it is one page of zeros, and in the cache.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple, cast

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.costs import UnitCost
from ruvrun.executors import Array, back_end, load_decoder
from ruvrun.machine import forget_peak, peak_bytes
from ruvrun.profile.by_unit import unit_rows
from ruvrun.profile.conditions import Conditions, Tell, clock_of, silent
from ruvrun.profile.places import Ground, Place
from ruvrun.profile.recorded import Measured, Recording, counted, counts, open_counted, recorded
from ruvrun.profile.sheet import Sheet
from ruvrun.profile.steady import Case, spread, steady
from ruvrun.profile.trace import Kernel, net

STEPS, PROMPTS = 6, 2
"""How often a step and a chunk are run at least; the longest chunk, which is nearly as long as all else, once less."""

PROFILED_STEPS, PROFILED_PROMPTS = 5, 2


class Loaded(NamedTuple):
    """A stage in memory; the most memory that the process took before, and that loading it took, in bytes."""

    executor: Measured
    bare: int
    grown: int


def load(directory: Path, spec: StageSpec, where: Ground, threads: int, *, counting: bool = False) -> Loaded:
    """Load the stage, and fill its key/value space; ``counting``: so that it tells its kernels, where that is cheap."""
    back_end(spec)
    forget_peak()
    before = peak_bytes()
    if counting and counts(spec):
        executor = open_counted(directory, spec, where, threads)
    else:
        loaded = load_decoder(directory, spec, context=where.context, slots=where.slots, threads=threads)
        executor = cast(Measured, loaded)  # all are
    grown = max(0, peak_bytes() - before)
    executor.occupy(where.slots, where.filled)
    return Loaded(executor, before, grown)


def inputs_of(spec: StageSpec, count: int) -> dict[str, Array]:
    """Inputs of a stage for ``count`` tokens; how long a kernel runs does not depend on what the values are."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for tensor in spec.inputs:
        shape = [count, *(size for size in tensor.shape[1:] if isinstance(size, int))]
        if tensor.name == "input_ids":
            found[tensor.name] = random.integers(0, spec.vocab, count)
        else:
            found[tensor.name] = random.standard_normal(shape).astype(tensor.dtype)
    return found


def runner(
    executor: Measured, inputs: Mapping[str, Array], place: Place, clock: Callable[[], float] = time.perf_counter
) -> Callable[[], float]:
    """A call that runs the step of ``place`` and returns its milliseconds by ``clock``."""
    spans = place.spans
    tensors = {name: array[: place.rows * place.tokens] for name, array in inputs.items()}

    def run() -> float:
        if getattr(executor, "ends_where_it_was", False):  # what it keeps ends where its last step did
            executor.occupy(place.rows, place.depth)
        start = clock()
        executor.step(spans, tensors)
        return (clock() - start) * 1e3

    return run


def measure_decoder(
    directory: Path,
    spec: StageSpec,
    sheet: Sheet,
    held: list[Loaded],
    where: Ground,
    conditions: Conditions,
    tell: Tell = silent,
) -> list[UnitCost]:
    """A row for every distinct unit of the stage in ``directory``; ``source`` is 0.

    Args:
        held: the stage, loaded; it is taken out, and let go of before the one that is profiled is loaded.
    """
    inputs = inputs_of(spec, max(place.rows * place.tokens for place in where.places))
    if conditions.brief and counts(spec):
        return _measured_at_once(spec, sheet, held.pop().executor, inputs, where, conditions, tell)
    sizes, noise = _sizes(held.pop().executor, inputs, where, conditions, clock_of(spec, conditions), tell)
    gc.collect()
    with recorded(directory, spec, where, conditions.threads) as recording:
        profiled = _profiled(recording, spec, inputs, where, conditions, tell)
    shares = {}
    for place in where.places:
        runs, took = profiled[_like(place, where, spec.exported)]
        size, like = (statistics.median(sizes[each]) for each in (place, _like(place, where, spec.exported)))
        shares[place] = net(runs, size, size * statistics.median(took) / like)
    return unit_rows(spec, sheet, where, shares, conditions, noise)


def _measured_at_once(
    spec: StageSpec,
    sheet: Sheet,
    executor: Measured,
    inputs: Mapping[str, Array],
    where: Ground,
    conditions: Conditions,
    tell: Tell,
) -> list[UnitCost]:
    """The rows of a stage that counts: sizes and shares are of the same steps."""
    ran: dict[Place, list[dict[Kernel, float]]] = defaultdict(list)
    sizes, noise = _sizes(
        executor,
        inputs,
        where,
        conditions,
        clock_of(spec, conditions),
        tell,
        done=lambda place: ran[place].append(counted(executor)),
    )
    shares = {place: net(ran[place], statistics.median(sizes[place])) for place in where.places}
    return unit_rows(spec, sheet, where, shares, conditions, noise)


def _sizes(
    executor: Measured,
    inputs: Mapping[str, Array],
    where: Ground,
    conditions: Conditions,
    clock: Callable[[], float],
    tell: Tell,
    done: Callable[[Place], None] = lambda _place: None,
) -> tuple[dict[Place, list[float]], float]:
    """Milliseconds of the unprofiled steps, and how far those at the usual place spread by the clock on the wall.

    Args:
        clock: what steps are timed by.
        done: told of every step that is counted.
    """
    longest = max(place.tokens for place in where.places)
    walls: list[float] = []

    def measured(place: Place) -> float:
        start = time.perf_counter()
        ms = runs[place]()
        if place == where.usual:
            walls.append(time.perf_counter() - start)
        done(place)
        return ms

    runs = {place: runner(executor, inputs, place, clock) for place in where.places}
    cases = []
    for place, run in runs.items():
        if place.tokens < longest or longest == 1:
            run()  # the first one makes buffers
        least = STEPS if place.tokens == 1 else PROMPTS - (place.tokens == longest)
        cases.append(Case(partial(measured, place), least))

    def told(rounds: int) -> None:
        tell("steps", min(rounds, STEPS), STEPS)

    times = steady(cases, seconds=conditions.seconds, rough=conditions.rough, fine=conditions.fine, done=told)
    return dict(zip(where.places, times, strict=True)), spread(walls)


def _profiled(
    recording: Recording,
    spec: StageSpec,
    inputs: Mapping[str, Array],
    where: Ground,
    conditions: Conditions,
    tell: Tell,
) -> dict[Place, tuple[list[dict[Kernel, float]], list[float]]]:
    """The kernels of some profiled steps, and how long those took, at the places of which ``_like`` needs them."""
    places = dict.fromkeys(_like(place, where, spec.exported) for place in where.places)
    steps = [place for place in places if place.tokens == 1]
    order = [*(1 + PROFILED_STEPS) * steps, *PROFILED_PROMPTS * [place for place in places if place.tokens > 1]]
    executor = recording.executor
    executor.occupy(where.slots, where.filled)
    took = []
    for number, place in enumerate(order):
        took.append(runner(executor, inputs, place, clock_of(spec, conditions))())
        recording.ran()
        tell("profile", 1 + number, len(order))
    traced = recording.runs()
    found: dict[Place, tuple[list[dict[Kernel, float]], list[float]]] = {place: ([], []) for place in places}
    # The first steps make buffers. A step is one run of the back end: an exported decoder's rows are not profiled.
    for place, ms, kernels in [*zip(order, took, traced, strict=True)][len(steps) :]:
        found[place][0].append(kernels)
        found[place][1].append(ms)
    return found


def _like(place: Place, where: Ground, exported: bool) -> Place:
    """The place whose shares hold at ``place``: itself, but for two kinds that need not be run.

    The longest chunk has those of the one before it; and where every sequence is a call of its own, those of one hold.
    """
    if place.tokens == 1:
        return place._replace(rows=1) if exported else place
    shorter = [each for each in where.places if each.depth == 0 and 1 < each.tokens < place.tokens]
    return shorter[-1] if len(shorter) > 1 else place
