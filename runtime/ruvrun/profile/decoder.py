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
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.costs import NodeCost, Point, UnitCost
from ruvrun.executors import Array, Span
from ruvrun.executors.onnxruntime import OnnxDecoder, load_decoder
from ruvrun.executors.sessions import open_session
from ruvrun.executors.stateful import StatefulDecoder
from ruvrun.machine import forget_peak, peak_bytes
from ruvrun.profile.conditions import Conditions, Tell, silent
from ruvrun.profile.sheet import Sheet
from ruvrun.profile.steady import Case, spread, steady
from ruvrun.profile.trace import Kernel, net, read_trace

ROWS = (1, 2, 4, 8)
DEPTHS = (16, 256, 1024)
CHUNKS = (32, 128, 256)
STEPS, PROMPTS = 6, 2
"""How often a step and a chunk are run at least; the longest chunk, which is nearly as long as all else, once less."""

PROFILED_STEPS = 3
STATE_BYTES = 768 << 20
"""Of key/value space that is filled at most."""

_SPARE = 32
_Decoder = OnnxDecoder | StatefulDecoder


class Place(NamedTuple):
    """What is run: so many sequences with so many tokens each, behind so many others."""

    rows: int
    tokens: int
    depth: int

    @property
    def spans(self) -> list[Span]:
        """The step."""
        return [Span(slot, self.depth, self.tokens, 1) for slot in range(self.rows)]


class Ground(NamedTuple):
    """Where a stage is measured: the places, the one that stands for all, and the key/value space they need."""

    places: tuple[Place, ...]
    usual: Place
    chunk: Place
    slots: int
    context: int

    @property
    def filled(self) -> int:
        """Positions of every slot that steps look back at."""
        return max(place.depth for place in self.places)


class Loaded(NamedTuple):
    """A stage in memory, and the most memory that loading it took, in bytes."""

    executor: _Decoder
    grown: int


def ground(spec: StageSpec, context: int) -> Ground:
    """The places at which a stage of a model with so many positions is measured; less of all where they are few."""
    per_token = spec.kv.bytes_per_token if spec.kv is not None else 0
    slots = ROWS[-1] if not spec.exported else 2
    while slots > 1 and per_token * slots * DEPTHS[0] > STATE_BYTES:
        slots //= 2
    most = min(context - 1, STATE_BYTES // max(1, per_token * slots) - _SPARE)
    # Where the context is short, half of it stands for all, and its end for what is deep.
    usual = max(0, min(DEPTHS[1], context // 2, most))
    depths = sorted({min(DEPTHS[0], usual), usual, max(usual, min(DEPTHS[2], most))})
    chunks = sorted({max(2, min(chunk, context)) for chunk in CHUNKS}) if context > 1 else []
    steps = [Place(rows, 1, depth) for depth in depths for rows in ROWS if rows <= slots]
    prompts = [Place(1, chunk, 0) for chunk in chunks]
    late = min(depths[-1], context - chunks[0]) if chunks else 0
    if late > 0:
        prompts.append(Place(1, chunks[0], late))
    common = Place(1, 1, usual)
    chunk = prompts[min(1, len(chunks) - 1)] if prompts else common
    longest = max(place.depth + place.tokens for place in (*steps, *prompts))
    return Ground((*steps, *prompts), common, chunk, slots, longest)


def load(directory: Path, spec: StageSpec, where: Ground, threads: int) -> Loaded:
    """Load the stage, and fill its key/value space."""
    forget_peak()
    before = peak_bytes()
    executor = load_decoder(directory, spec, context=where.context, slots=where.slots, threads=threads)
    grown = max(0, peak_bytes() - before)
    executor.occupy(where.slots, where.filled)
    return Loaded(executor, grown)


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


def runner(executor: _Decoder, inputs: Mapping[str, Array], place: Place) -> Callable[[], float]:
    """A call that runs the step of ``place`` and returns its milliseconds."""
    spans = place.spans
    tensors = {name: array[: place.rows * place.tokens] for name, array in inputs.items()}

    def run() -> float:
        if isinstance(executor, StatefulDecoder):  # what it keeps ends where its last step did
            executor.occupy(place.rows, place.depth)
        start = time.perf_counter()
        executor.step(spans, tensors)
        return (time.perf_counter() - start) * 1e3

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
    sizes = _sizes(held.pop().executor, inputs, where, conditions, tell)
    gc.collect()
    kernels = _profiled(directory, spec, inputs, where, conditions.threads, tell)
    shares = {
        place: net(kernels[_like(place, where, spec.exported)], statistics.median(sizes[place]))
        for place in where.places
    }
    return _rows(spec, sheet, where, shares, conditions, spread(sizes[where.usual]))


def _sizes(
    executor: _Decoder, inputs: Mapping[str, Array], where: Ground, conditions: Conditions, tell: Tell
) -> dict[Place, list[float]]:
    """Milliseconds of the unprofiled steps."""
    longest = max(place.tokens for place in where.places)
    cases = []
    for place in where.places:
        run = runner(executor, inputs, place)
        if place.tokens < longest or longest == 1:
            run()  # the first one makes buffers
        least = STEPS if place.tokens == 1 else PROMPTS - (place.tokens == longest)
        cases.append(Case(run, least))

    def done(rounds: int) -> None:
        tell("steps", min(rounds, STEPS), STEPS)

    times = steady(cases, seconds=conditions.seconds, rough=conditions.rough, fine=conditions.fine, done=done)
    return dict(zip(where.places, times, strict=True))


def _profiled(
    directory: Path, spec: StageSpec, inputs: Mapping[str, Array], where: Ground, threads: int, tell: Tell
) -> dict[Place, list[dict[Kernel, float]]]:
    """The kernels of some profiled steps at the places of which ``_like`` needs them."""
    kind = StatefulDecoder if spec.exported else OnnxDecoder
    places = dict.fromkeys(_like(place, where, spec.exported) for place in where.places)
    steps = [place for place in places if place.tokens == 1]
    order = [*(1 + PROFILED_STEPS) * steps, *(place for place in places if place.tokens > 1)]
    found: dict[Place, list[dict[Kernel, float]]] = defaultdict(list)
    with tempfile.TemporaryDirectory(prefix="ruvrun-") as folder:
        profile = Path(folder) / "trace"
        session = open_session(directory / spec.model, threads=threads, fused=not spec.exported, profile=profile)
        executor = kind(session, spec, context=where.context, slots=where.slots)
        executor.occupy(where.slots, where.filled)
        for number, place in enumerate(order):
            runner(executor, inputs, place)()
            tell("profile", 1 + number, len(order))
        # The first steps make buffers. A step is one run of the back end: an exported decoder's rows are not profiled.
        for place, kernels in [*zip(order, read_trace(Path(session.end_profiling())), strict=True)][len(steps) :]:
            found[place].append(kernels)
    return found


def _like(place: Place, where: Ground, exported: bool) -> Place:
    """The place whose shares hold at ``place``: itself, but for two kinds that need not be run.

    The longest chunk has those of the one before it; and where every sequence is a call of its own, those of one hold.
    """
    if place.tokens == 1:
        return place._replace(rows=1) if exported else place
    shorter = [each for each in where.places if each.depth == 0 and 1 < each.tokens < place.tokens]
    return shorter[-1] if len(shorter) > 1 else place


def _rows(
    spec: StageSpec,
    sheet: Sheet,
    where: Ground,
    shares: Mapping[Place, Mapping[Kernel, float]],
    conditions: Conditions,
    noise: float,
) -> list[UnitCost]:
    owner = {name: number for number, unit in enumerate(sheet.unit) for name in unit.nodes}
    members: dict[str, list[int]] = defaultdict(list)
    for number, unit in enumerate(sheet.unit):
        members[unit.key].append(number)
    times = {place: _by_unit(kernels, owner) for place, kernels in shares.items()}
    found = []
    for key, numbers in members.items():
        unit = sheet.unit[numbers[0]]
        ms = {place: sum(units.get(number, 0.0) for number in numbers) / len(numbers) for place, units in times.items()}
        nodes: dict[Kernel, float] = defaultdict(float)
        for (name, op), value in shares[where.usual].items():
            if owner.get(name) in numbers:
                nodes[_generic(name), op] += value / len(numbers)
        found.append(
            UnitCost(
                key=key,
                label=unit.label,
                target=spec.target,
                backend=spec.backend,
                threads=conditions.threads,
                beside=conditions.beside,
                ms=round(ms[where.usual], 6),
                ms_per_token=round(ms[where.chunk] / where.chunk.tokens, 6),
                depth=where.usual.depth,
                chunk=where.chunk.tokens,
                spread=noise,
                curve=[Point(ms=round(ms[p], 6), rows=p.rows, tokens=p.tokens, depth=p.depth) for p in where.places],
                weight_bytes=unit.weight_bytes,
                node=[NodeCost(name=name, op=op, ms=round(value, 6)) for (name, op), value in nodes.items()],
                source=0,
            )
        )
    return found


def _by_unit(kernels: Mapping[Kernel, float], owner: Mapping[str, int]) -> dict[int, float]:
    """Times of the kernels as times of the units; what bears no node's name belongs to the unit that ran before it."""
    found: dict[int, float] = defaultdict(float)
    last = 0
    for (name, _), ms in kernels.items():
        last = owner.get(name, last)
        found[last] += ms
    return found


def _generic(name: str) -> str:
    """A node's name without the number of its layer."""
    first, slash, rest = name.strip("/").partition("/")
    return f"layers.*/{rest}" if first.startswith("layers.") and slash else name.strip("/")
