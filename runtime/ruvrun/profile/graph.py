"""What each unit of a graph costs on this machine, in milliseconds.

A profiler tells shares, not sizes: writing an event takes longer than a small kernel runs, so a profile of many
small nodes adds up to many times the truth. Sizes come from whole runs without it. The median of those is
divided among the nodes by the profile's shares, so that all nodes together cost what the graph costs. A node's share
is the median of several profiled runs: whom the machine interrupts once, for as long as a hundred kernels take, is
not dear for that. ``attribution`` says which node a kernel belongs to.

Both are of one session, which is profiled first and then no more: loading a graph of very many nodes takes longer than
all its runs.

A graph is called with one thing at a time, so there is no curve over rows and no chunk.
"""

from __future__ import annotations

import bisect
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruvrun.bundle import StageSpec
from ruvrun.costs import UnitCost
from ruvrun.elements import Value
from ruvrun.errors import InputError, MachineError
from ruvrun.executors import GraphExecutor, back_end
from ruvrun.executors.pages import use_huge_pages
from ruvrun.npz import read_npz
from ruvrun.profile.attribution import Attribution, Event
from ruvrun.profile.conditions import Conditions, Tell, clock_of, silent
from ruvrun.profile.recorded import counts
from ruvrun.profile.sheet import Sheet
from ruvrun.profile.steady import spread as spread_of
from ruvrun.scratch import scratch_folder

LEAST_RUNS = 5
MOST_RUNS = 400
PROFILED_RUNS = 5
LEAST_PROFILED_RUNS = 3
PROFILED_EVENTS = 50_000
"""Kernels that are profiled, roughly: reading what the profiler writes takes longer than the runs."""

OPERATORS = {"Convolution": "Conv", "FullyConnected": "MatMul", "Deconvolution": "ConvTranspose"}
"""What ONNX calls kinds of OpenVINO's kernels that other nodes are merged into."""

_SUFFIX = "_kernel_time"
_IN = "in."


def graph_inputs(directory: Path, spec: StageSpec) -> dict[str, Value]:
    """What the stage in ``directory`` is run on: the inputs of its golden check, which a probe has without results.

    Raises:
        InputError: ``samples-missing``, or they cannot be read.
    """
    if spec.golden is None:
        raise InputError(
            "samples-missing", f"{directory} has no inputs to run its stage on", hint="build it, or the probe, again"
        )
    names = {f"{_IN}{port.name}" for port in spec.inputs}
    path = directory / spec.golden.file
    try:
        stored = read_npz(path, names)
    except (OSError, ValueError) as error:
        raise InputError(
            "samples-wrong", f"{path} cannot be read", context=[str(error)], hint="copy the directory again"
        ) from None
    given = {name.removeprefix(_IN): value for name, value in stored.items() if name.startswith(_IN)}
    return {port.name: given.get(port.name) for port in spec.inputs}  # an optional that is absent is in no file


def measure_graph(
    directory: Path, spec: StageSpec, sheet: Sheet, conditions: Conditions, tell: Tell = silent
) -> list[UnitCost]:
    """A row for every distinct unit of the stage in ``directory``; ``source`` is 0. Equal units share their mean.

    Raises:
        InputError: the stage does not load, or does not run on its own inputs.
    """
    inputs, nodes = graph_inputs(directory, spec), Attribution(sheet.node)
    runs = max(LEAST_PROFILED_RUNS, min(PROFILED_RUNS, PROFILED_EVENTS // max(1, len(sheet.node))))
    record = _counted if counts(spec) else _traced
    executor, recorded = record(directory, spec, inputs, 1 + runs, conditions.threads)
    divided = [nodes.divide(events) for events in recorded]
    tell("profile", 1, 2)
    total, spread = time_whole(executor, inputs, conditions, clock_of(spec, conditions))
    tell("run", 2, 2)
    costs = by_key(sheet, shared(total, divided))
    distinct = {unit.key: unit for unit in reversed(sheet.unit)}
    return [
        UnitCost(
            key=key,
            label=distinct[key].label,
            target=spec.target,
            backend=spec.backend,
            threads=conditions.threads,
            beside=conditions.beside,
            ms=ms,
            source=0,
            spread=spread,
            weight_bytes=distinct[key].weight_bytes,
        )
        for key, ms in costs.items()
    ]


def _traced(
    directory: Path, spec: StageSpec, inputs: Mapping[str, Value], runs: int, threads: int
) -> tuple[GraphExecutor, list[list[Event]]]:
    """A stage of ONNX Runtime, and its kernels, run by run, without the first run."""
    from ruvrun.executors.graph import OnnxGraph  # a node may have another back end alone
    from ruvrun.executors.onnxruntime import WORTH_HUGE_PAGES
    from ruvrun.executors.sessions import open_session

    with scratch_folder("ruvrun") as folder:
        profile = folder / "profile"
        session = open_session(directory / spec.model, threads=threads, spinning=False, profile=profile)
        if sum(file.bytes for file in spec.files) >= WORTH_HUGE_PAGES:  # as when it serves
            use_huge_pages()
        executor = OnnxGraph(session)
        for _ in range(runs):
            executor.run(inputs)
        return executor, _events(Path(session.end_profiling()))


def _counted(
    directory: Path, spec: StageSpec, inputs: Mapping[str, Value], runs: int, threads: int
) -> tuple[GraphExecutor, list[list[Event]]]:
    """The same of OpenVINO, whose counters cost next to nothing. Its kernels have the names of the last of the nodes
    that went into them, as those of ONNX Runtime do.
    """
    executor = back_end(spec).load_graph(directory, spec, threads=threads, profile=True)
    found = []
    for _ in range(runs):
        executor.run(inputs)
        ran = executor.kernels()
        found.append([Event(each.name, OPERATORS.get(each.kind, each.kind), each.microseconds) for each in ran])
    return executor, found[1:]


def shared(total: float, runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """``total`` divided among the nodes by their shares in the profiled ``runs``: medians, which ignore one outlier."""
    shares = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    whole = sum(shares.values())
    if whole <= 0:  # nothing was left to run; the little time there is belongs to all alike
        return {name: total / len(shares) for name in shares}
    return {name: total * share / whole for name, share in shares.items()}


def by_key(sheet: Sheet, nodes: Mapping[str, float]) -> dict[str, float]:
    """Times of the nodes as times of the units, by key."""
    members: dict[str, list[float]] = {}
    for unit in sheet.unit:
        members.setdefault(unit.key, []).append(sum(nodes[name] for name in unit.nodes))
    return {key: round(sum(ms) / len(ms), 6) for key, ms in members.items()}


def time_whole(
    executor: GraphExecutor, inputs: Mapping[str, Value], conditions: Conditions, clock: Callable[[], float]
) -> tuple[float, float]:
    """The median of whole runs without a profiler by ``clock``, in milliseconds; their spread by that on the wall."""
    for _ in range(2):
        executor.run(inputs)
    times: list[float] = []
    walls: list[float] = []
    until = time.perf_counter() + conditions.seconds
    while len(times) < LEAST_RUNS or (
        len(times) < MOST_RUNS and time.perf_counter() < until and _roughness(times) > conditions.rough
    ):
        began, start = time.perf_counter(), clock()
        executor.run(inputs)
        times.append(clock() - start)
        walls.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times), spread_of(walls)


def _roughness(times: Sequence[float]) -> float:
    """How far the median may be from the true one, relative to it: its standard error where times spread as usual."""
    low, middle, high = np.quantile(times, (0.25, 0.5, 0.75))
    return float(0.93 * (high - low) / middle / math.sqrt(len(times)))


def _events(trace: Path) -> list[list[Event]]:
    """The kernels in a trace, run by run, without the first run, which warms up caches and arenas."""
    records: list[dict[str, Any]]
    try:
        records = json.loads(trace.read_text("utf-8"))
    except json.JSONDecodeError:  # ONNX Runtime does not say when it cannot write all of it
        raise MachineError("trace-cut-off", f"the profile {trace} is cut off", hint="make room on that disk") from None
    kernels = [each for each in records if each.get("cat") == "Node" and each["name"].endswith(_SUFFIX)]
    # A run begins where its own event does.
    starts = sorted(each["ts"] for each in records if each["name"] == "model_run")[1:]
    found: list[list[Event]] = [[] for _ in starts]
    for each in sorted(kernels, key=lambda each: each["ts"]):
        if number := bisect.bisect_right(starts, each["ts"]):
            name, operator = each["name"].removesuffix(_SUFFIX), each["args"].get("op_name", "")
            found[number - 1].append(Event(name, operator, float(each["dur"])))
    return found
