"""What each node of a graph costs on this machine, in milliseconds.

A profiler tells shares, not sizes: writing an event takes longer than a small kernel runs, so a profile of many
small nodes adds up to many times the truth. Sizes come from whole runs without it. The median of those is
divided among the nodes by the profile's shares, so that all nodes together cost what the graph costs. A node's share
is the median of several profiled runs: whom the machine interrupts once, for as long as a hundred kernels take, is
not dear for that.

The profile is of the graph that ONNX Runtime made of ours, so its names are mapped back:

1. the name of one of our nodes is that node; of a node in a body, the node that has the body;
2. otherwise the longest of our node or output names that stands in it as a word, since fusions and layout
   changes derive their names (``conv2d_451.tmp_0_nchwc``, ``node_slice_5/GatherSliceToSplitFusion``);
   A kernel that is named after the last of the nodes fused into it (Conv, BatchNormalization, Relu) goes to the
   one whose operator it is, so that a cut between them does not put its cost on the wrong side;
3. what carries no name of ours goes to the node that ran before it, or after it when it reorders an input.

An If or Loop has its own event, which spans those of its body: where it is there, the body's are not counted.
"""

from __future__ import annotations

import bisect
import json
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx_ir as ir

from ruvcompile.passes.scope import all_bodies
from ruvcompile.program import Program
from ruvcompile.whole import open_session, run
from ruvrun.elements import Array

SECONDS = 1.0
"""How long whole runs are timed, at most, once there are ``LEAST_RUNS``."""

LEAST_RUNS = 5
MOST_RUNS = 200
PROFILED_RUNS = 5
LEAST_PROFILED_RUNS = 3
PROFILED_EVENTS = 50_000
"""Kernels that are profiled, roughly: reading what the profiler writes takes longer than the runs."""

_SUFFIX = "_kernel_time"
_LONGEST_FUSION = 5
_WORD = re.compile(r"[^\W_]+")


class Event(NamedTuple):
    """One kernel in the profile: its node's name there, its operator, and how long it ran, in any one unit."""

    name: str
    operator: str
    duration: float


def measure_graph(program: Program, arrays: Mapping[str, Array], threads: int) -> dict[str, float]:
    """Milliseconds of each top-level node of ``program``, by name; their sum is the time of one whole run.

    A node that was folded away or fused into another costs 0.

    Args:
        program: in canonical form.
        arrays: the graph's inputs (``samples.sample``).
        threads: as the stage will use.

    Raises:
        InputError: the model does not load or does not run on ``arrays``.
    """
    total = time_whole(program.model, arrays, threads)
    runs = [attribute(program.model.graph, events) for events in _profile(program.model, arrays, threads)]
    shares = {name: statistics.median(run[name] for run in runs) for name in runs[0]}
    whole = sum(shares.values())
    if whole <= 0:  # nothing was left to run; the little time there is belongs to all alike
        return {name: total / len(shares) for name in shares}
    return {name: total * share / whole for name, share in shares.items()}


def time_whole(model: ir.Model, arrays: Mapping[str, Array], threads: int) -> float:
    """The median of whole runs of ``model``, without a profiler, in milliseconds."""
    session = open_session(model, threads=threads)
    for _ in range(2):
        run(session, arrays)
    times: list[float] = []
    start = time.perf_counter()
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and time.perf_counter() - start < SECONDS):
        before = time.perf_counter()
        run(session, arrays)
        times.append(time.perf_counter() - before)
    return 1e3 * statistics.median(times)


def attribute(graph: ir.Graph, events: Sequence[Event]) -> dict[str, float]:
    """Divide the durations of ``events``, in the order in which they ran, among the top-level nodes of ``graph``."""
    owner = _owners(graph)
    nodes = {node.name: node for node in graph}
    own = {node.name or "": 0.0 for node in graph}
    inner = dict.fromkeys(own, 0.0)
    carried, last = 0.0, next(iter(own))
    for event in events:
        name = _find(event.name, owner)
        if name is None:
            if event.operator == "ReorderInput":
                carried += event.duration
            else:
                own[last] += event.duration
            continue
        last, in_body = owner[name]
        if not in_body:
            last = _same_operator(nodes[last], event.operator)
        (inner if in_body else own)[last] += event.duration
        own[last] += carried
        carried = 0.0
    own[last] += carried
    return {name: own[name] if own[name] > 0 else inner[name] for name in own}


def _owners(graph: ir.Graph) -> dict[str, tuple[str, bool]]:
    """For every name of a node or of its outputs: the top-level node it belongs to, and whether it is in a body."""
    found: dict[str, tuple[str, bool]] = {}
    for node in graph:
        top = node.name or ""
        for body in all_bodies(node):
            for each in body:
                for name in (each.name, *(output.name for output in each.outputs)):
                    if name:
                        found.setdefault(name, (top, True))
    for node in graph:
        top = node.name or ""
        found.update((output.name, (top, False)) for output in node.outputs if output.name)
    found.update((node.name, (node.name, False)) for node in graph if node.name)
    return found


def _same_operator(node: ir.Node, operator: str) -> str:
    """The name of ``node``, or of the nearest node of ``operator`` up the chain of first inputs, if there is one."""
    at: ir.Node | None = node
    for _ in range(_LONGEST_FUSION):
        if at is None or at.op_type == operator:
            break
        first = at.inputs[0] if at.inputs else None
        at = first.producer() if first is not None else None
    found = at if at is not None and at.op_type == operator else node
    return found.name or ""


def _find(name: str, known: Mapping[str, Any]) -> str | None:
    """``name`` if it is known, else the longest known name that stands in it between the borders of words."""
    if name in known:
        return name
    words = list(_WORD.finditer(name))
    starts = {0, *(word.start() for word in words)}
    ends = {len(name), *(word.end() for word in words)}
    spans = sorted(((end - start, start, end) for start in starts for end in ends if start < end), reverse=True)
    return next((name[start:end] for _, start, end in spans if name[start:end] in known), None)


def _profile(model: ir.Model, arrays: Mapping[str, Array], threads: int) -> list[list[Event]]:
    """The kernels of each profiled run, in the order in which they ran."""
    count = max(LEAST_PROFILED_RUNS, min(PROFILED_RUNS, PROFILED_EVENTS // max(1, len(model.graph))))
    with tempfile.TemporaryDirectory(prefix="ruvcompile-") as folder:
        session = open_session(model, threads=threads, profile=Path(folder) / "profile")
        for _ in range(1 + count):
            run(session, arrays)
        records = json.loads(Path(session.end_profiling()).read_text("utf-8"))
    kernels = [each for each in records if each.get("cat") == "Node" and each["name"].endswith(_SUFFIX)]
    # The first run warms up caches and arenas; a run begins where its own event does.
    starts = sorted(each["ts"] for each in records if each["name"] == "model_run")[1:]
    found: list[list[Event]] = [[] for _ in starts]
    for each in sorted(kernels, key=lambda each: each["ts"]):
        if number := bisect.bisect_right(starts, each["ts"]):
            name, operator = each["name"].removesuffix(_SUFFIX), each["args"].get("op_name", "")
            found[number - 1].append(Event(name, operator, float(each["dur"])))
    return found
