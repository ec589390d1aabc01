"""What the units of a decoder cost, measured in place.

A layer that is run alone, again and again, sits in the cache and looks faster than it is; a profiler makes small
nodes look slower than they are. So:

1. The whole decoder is run, so that its weights pass through the caches as they will when it serves.
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
from pathlib import Path
from typing import Any

import numpy as np

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure.segment import UnitTime
from ruvcompile.passes.pieces import pieces, unit_of
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvrun.bundle import StageSpec
from ruvrun.costs import NodeCost
from ruvrun.executors import Array, DecoderExecutor, Span, stateful
from ruvrun.executors.onnxruntime import OnnxDecoder, open_session
from ruvrun.executors.stateful import StatefulDecoder

DEPTH = 256
CHUNK = 128
STEPS = 60
PROFILED_STEPS = 12
CHUNKS = 3
# An event of the profiler shorter than this is all overhead.
FLOOR_US = 0.2


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
    named = {unit_of(unit.nodes[0]): key for key, unit in zip(keys, units, strict=True)}
    (piece,) = pieces(program, units, ())
    with progress.step("measure", total=STEPS + CHUNKS + PROFILED_STEPS) as bar:
        spec = write_stage(program, piece, scratch, store, backend="onnxruntime", target="host")
        ids = np.random.default_rng(0).integers(0, program.decoder.vocab, context)
        executor, _ = _open(scratch, spec, context, threads)
        chunk_ms = []
        for _ in range(CHUNKS):
            chunk_ms.append(_timed(executor, ids, 0, chunk))
            bar.advance()
        _timed(executor, ids, 0, depth)
        single_ms = []
        for step in range(STEPS):
            single_ms.append(_timed(executor, ids, depth + step % (context - depth), 1))
            bar.advance()
        del executor
        trace = scratch / "trace"
        executor, session = _open(scratch, spec, context, threads, trace)
        _timed(executor, ids, 0, depth)
        for step in range(PROFILED_STEPS):
            _timed(executor, ids, depth + step % (context - depth), 1)
            bar.advance()
        events = _events(Path(session.end_profiling()))
    single = _shares(events[1:], statistics.median(single_ms))
    prompt = _shares(events[:1], statistics.median(chunk_ms))
    spread = float((np.quantile(single_ms, 0.9) - np.quantile(single_ms, 0.1)) / statistics.median(single_ms))
    return _by_key(named, single, prompt, spread, depth, chunk)


def _open(
    directory: Path, spec: StageSpec, context: int, threads: int, profile: Path | None = None
) -> tuple[DecoderExecutor, Any]:
    """The executor of a stage, and the session inside it, which ends the profile."""
    kind, opener = (StatefulDecoder, stateful.open_session) if spec.exported else (OnnxDecoder, open_session)
    session = opener(directory / spec.model, threads=threads, profile=profile)
    return kind(session, spec, context=context, slots=1), session


def _timed(executor: DecoderExecutor, ids: Array, position: int, count: int) -> float:
    start = time.perf_counter()
    executor.step([Span(0, position, count, 1)], {"input_ids": ids[position : position + count]})
    return (time.perf_counter() - start) * 1e3


def _events(trace: Path) -> list[dict[tuple[str, str], float]]:
    """The runs of a trace, in order: microseconds by (node name, operator)."""
    runs: list[dict[tuple[str, str], float]] = []
    current: dict[tuple[str, str], float] = defaultdict(float)
    for event in json.loads(trace.read_text("utf-8")):
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
        if key := keys.get(unit_of(name)):
            nodes[key][_generic(name), op] += ms / len(members[key])
    for (name, _), ms in prompt.items():
        if key := keys.get(unit_of(name)):
            chunk_ms[key] += ms / len(members[key])
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
