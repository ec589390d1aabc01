"""What the units of a decoder cost, measured in place.

A layer that is run alone, again and again, sits in the cache and looks faster than it is; a profiler makes small
nodes look slower than they are. So:

1. The whole decoder is run, so that its weights pass through the caches as they will when it serves. One that is
   larger than ``SAMPLE_BYTES`` is not: then one unit of every kind (``unit_keys``) is run, and as many more as fit.
   Neighbours are one segment; the segments are run in turn, so that here, too, each finds the caches as another one
   left them. Units of equal key are one row, so nothing is missing.
2. *Sizes* are medians of unprofiled steps: one token at a context of ``DEPTH`` tokens, and a prompt chunk of
   ``CHUNK`` tokens; less of both where the model's context is short.
3. *Shares* come from the profiler, after its overhead per node (what all nodes together are longer than the
   unprofiled step, divided by their number) has been taken off each.
4. A unit's cost is its share of the size. Layers of equal shape are averaged: they are one row.
"""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ruvcompile.errors import MachineError
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure.segment import UnitTime
from ruvcompile.parts import weight_bytes
from ruvcompile.passes.pieces import pieces, unit_of
from ruvcompile.passes.units import Unit
from ruvcompile.program import Piece, Program
from ruvcompile.progress import Bar, Progress
from ruvrun.bundle import StageSpec
from ruvrun.costs import NodeCost
from ruvrun.executors import Array, DecoderExecutor, Span
from ruvrun.executors.onnxruntime import OnnxDecoder
from ruvrun.executors.sessions import open_session
from ruvrun.executors.stateful import StatefulDecoder

DEPTH = 256
CHUNK = 128
STEPS = 60
PROFILED_STEPS = 12
CHUNKS = 3
# An event of the profiler shorter than this is all overhead.
FLOOR_US = 0.2
SAMPLE_BYTES = 768 << 20
"""Weights of the units that are run; loaded they take up to twice as much."""


@dataclass(frozen=True)
class Segment:
    """Neighbouring units as a stage, and what it is run on: ``[context, ...]`` each."""

    directory: Path
    spec: StageSpec
    inputs: Mapping[str, Array]


def measure_units(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    *,
    store: WeightStore,
    scratch: Path,
    threads: int,
    samples: Mapping[str, Array],  # noqa: ARG001 - decoders are run on random tokens
    progress: Progress,
) -> dict[str, UnitTime]:
    """Times of the units by key, on this machine with ``threads`` threads."""
    assert program.decoder is not None
    depth = min(DEPTH, program.decoder.context // 2)
    context = min(program.decoder.context, depth + STEPS)
    chunk = max(2, min(CHUNK, depth))
    sample = sampled(program, units, keys)
    named = {unit_of(units[number].nodes[0]): keys[number] for span in sample for number in span}
    with progress.step("measure", total=STEPS + CHUNKS + PROFILED_STEPS * len(sample)) as bar:
        segments = []
        for number, piece in enumerate(_pieces(program, units, sample)):
            directory = scratch / f"segment-{number}"
            spec = write_stage(program, piece, directory, store, backend="onnxruntime", target="host")
            segments.append(Segment(directory, spec, _inputs(spec, program.decoder.vocab, context)))
        chunk_ms, single_ms = _sizes(segments, context, depth, chunk, threads, bar)
        single: dict[tuple[str, str], float] = {}
        prompt: dict[tuple[str, str], float] = {}
        for number, segment in enumerate(segments):
            events = _profiled(segment, context, depth, threads, scratch / "trace", bar)
            single |= _shares(events[1:], statistics.median(times[number] for times in single_ms))
            prompt |= _shares(events[:1], statistics.median(times[number] for times in chunk_ms))
    whole = [sum(times) for times in single_ms]
    spread = float((np.quantile(whole, 0.9) - np.quantile(whole, 0.1)) / statistics.median(whole))
    return _by_key(named, single, prompt, spread, depth, chunk)


def sampled(program: Program, units: Sequence[Unit], keys: Sequence[str]) -> list[range]:
    """The units that are run, as spans of neighbours: all, or some of every key where all are too large."""
    chosen = {keys.index(key) for key in keys}
    for number in range(len(units)):
        if weight_bytes(program, [units[each] for each in chosen | {number}]) > SAMPLE_BYTES:
            break
        chosen.add(number)
    spans: list[range] = []
    for number in sorted(chosen):
        if spans and spans[-1].stop == number:
            spans[-1] = range(spans[-1].start, number + 1)
        else:
            spans.append(range(number, number + 1))
    return spans


def _pieces(program: Program, units: Sequence[Unit], sample: Sequence[range]) -> list[Piece]:
    cuts = sorted({cut for span in sample for cut in (span.start, span.stop)} - {0, len(units)})
    made = dict(zip([0, *cuts], pieces(program, units, cuts), strict=True))
    return [made[span.start] for span in sample]


def _inputs(spec: StageSpec, vocab: int, context: int) -> dict[str, Array]:
    """Inputs of a segment for ``context`` tokens; how long a kernel runs does not depend on what the values are."""
    random = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for tensor in spec.inputs:
        shape = [context, *(size for size in tensor.shape[1:] if isinstance(size, int))]
        if tensor.name == "input_ids":
            found[tensor.name] = random.integers(0, vocab, context)
        else:
            found[tensor.name] = random.standard_normal(shape).astype(tensor.dtype)
    return found


def _sizes(
    segments: Sequence[Segment], context: int, depth: int, chunk: int, threads: int, bar: Bar
) -> tuple[list[list[float]], list[list[float]]]:
    """Milliseconds of some prompt chunks and of many steps of one token, each segment by segment."""
    executors = [_open(segment.directory, segment.spec, context, threads)[0] for segment in segments]
    pairs = list(zip(executors, segments, strict=True))
    chunk_ms, single_ms = [], []
    for _ in range(CHUNKS):
        chunk_ms.append([_timed(executor, segment, 0, chunk) for executor, segment in pairs])
        bar.advance()
    for executor, segment in pairs:
        _timed(executor, segment, 0, depth)
    for step in range(STEPS):
        at = depth + step % (context - depth)
        single_ms.append([_timed(executor, segment, at, 1) for executor, segment in pairs])
        bar.advance()
    return chunk_ms, single_ms


def _profiled(
    segment: Segment, context: int, depth: int, threads: int, trace: Path, bar: Bar
) -> list[dict[tuple[str, str], float]]:
    executor, session = _open(segment.directory, segment.spec, context, threads, trace)
    _timed(executor, segment, 0, depth)
    for step in range(PROFILED_STEPS):
        _timed(executor, segment, depth + step % (context - depth), 1)
        bar.advance()
    return _events(Path(session.end_profiling()))


def _open(
    directory: Path, spec: StageSpec, context: int, threads: int, profile: Path | None = None
) -> tuple[DecoderExecutor, Any]:
    """The executor of a stage, and the session inside it, which ends the profile."""
    kind = StatefulDecoder if spec.exported else OnnxDecoder
    session = open_session(directory / spec.model, threads=threads, fused=not spec.exported, profile=profile)
    return kind(session, spec, context=context, slots=1), session


def _timed(executor: DecoderExecutor, segment: Segment, position: int, count: int) -> float:
    tensors = {name: array[position : position + count] for name, array in segment.inputs.items()}
    start = time.perf_counter()
    executor.step([Span(0, position, count, 1)], tensors)
    return (time.perf_counter() - start) * 1e3


def _events(trace: Path) -> list[dict[tuple[str, str], float]]:
    """The runs of a trace, in order: microseconds by (node name, operator)."""
    runs: list[dict[tuple[str, str], float]] = []
    current: dict[tuple[str, str], float] = defaultdict(float)
    try:
        records = json.loads(trace.read_text("utf-8"))
    except json.JSONDecodeError:  # ONNX Runtime does not say when it cannot write all of it
        raise MachineError("trace-cut-off", f"the profile {trace} is cut off", hint="make room on that disk") from None
    for event in records:
        if event.get("cat") == "Node" and event["name"].endswith("_kernel_time"):
            current[event["name"].removesuffix("_kernel_time"), event["args"]["op_name"]] += event["dur"]
        elif event.get("name") == "model_run":
            runs.append(dict(current))
            current = defaultdict(float)
    trace.unlink()
    return runs


def _shares(runs: Sequence[Mapping[tuple[str, str], float]], size_ms: float) -> dict[tuple[str, str], float]:
    """Milliseconds by (node, operator) that add up to ``size_ms``: medians of the runs, overhead taken off."""
    medians = {key: statistics.median(run.get(key, 0.0) for run in runs) for key in runs[0]}
    overhead = max(0.0, sum(medians.values()) - size_ms * 1e3) / len(medians)
    net = {key: max(FLOOR_US, value - overhead) for key, value in medians.items()}
    scale = size_ms / sum(net.values())
    return {key: value * scale for key, value in net.items()}


def _by_key(
    keys: Mapping[str, str],
    single: Mapping[tuple[str, str], float],
    prompt: Mapping[tuple[str, str], float],
    spread: float,
    depth: int,
    chunk: int,
) -> dict[str, UnitTime]:
    members: dict[str, list[str]] = defaultdict(list)
    for unit, key in keys.items():
        members[key].append(unit)
    nodes: dict[str, dict[tuple[str, str], float]] = defaultdict(lambda: defaultdict(float))
    chunk_ms: dict[str, float] = defaultdict(float)
    for (name, op), ms in single.items():
        if found := keys.get(unit_of(name)):
            nodes[found][_generic(name), op] += ms / len(members[found])
    for (name, _), ms in prompt.items():
        if found := keys.get(unit_of(name)):
            chunk_ms[found] += ms / len(members[found])
    return {
        key: UnitTime(
            ms=round(sum(nodes[key].values()), 6),
            spread=round(spread, 4),
            ms_per_token=round(chunk_ms[key] / chunk, 6),
            depth=depth,
            chunk=chunk,
            nodes=[NodeCost(name=name, op=op, ms=round(ms, 6)) for (name, op), ms in nodes[key].items()],
        )
        for key in members
    }


def _generic(name: str) -> str:
    """A node's name without the number of its layer."""
    first, slash, rest = name.strip("/").partition("/")
    return f"layers.*/{rest}" if first.startswith("layers.") and slash else name.strip("/")
