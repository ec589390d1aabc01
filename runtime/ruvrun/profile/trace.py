"""The profile that ONNX Runtime writes, as the time of each kernel, with the profiler's own time taken off.

A profiler tells shares, not sizes: to write an event takes longer than a small kernel runs. So what all kernels of a
run are longer than the same run without a profiler is divided by their number and taken off each (``net``); but no more
than the run itself was longer, since on a busy machine kernels are long for other reasons, and each by its own length.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruvrun.errors import MachineError

Kernel = tuple[str, str]
"""A node's name in the profile, and its operator."""

_SUFFIX = "_kernel_time"
# A kernel that is shorter than this, in microseconds, is all overhead.
_FLOOR = 0.2


def read_trace(trace: Path) -> list[dict[Kernel, float]]:
    """The runs of a trace, in order: microseconds of each kernel. The file is removed.

    Raises:
        MachineError: it is cut off; ONNX Runtime does not say when it cannot write all of it.
    """
    runs: list[dict[Kernel, float]] = []
    current: dict[Kernel, float] = defaultdict(float)
    try:
        records = json.loads(trace.read_text("utf-8"))
    except json.JSONDecodeError:
        raise MachineError("trace-cut-off", f"the profile {trace} is cut off", hint="make room on that disk") from None
    for event in records:
        if event.get("cat") == "Node" and event["name"].endswith(_SUFFIX):
            current[event["name"].removesuffix(_SUFFIX), event["args"]["op_name"]] += event["dur"]
        elif event.get("name") == "model_run":
            runs.append(dict(current))
            current = defaultdict(float)
    trace.unlink()
    return runs


def net(
    runs: Sequence[Mapping[Kernel, float]], size_ms: float, profiled_ms: float = float("inf")
) -> dict[Kernel, float]:
    """Milliseconds of each kernel that add up to ``size_ms``, what the whole takes without a profiler.

    Args:
        runs: of the same step; of each kernel the shortest counts, as no interruption makes one shorter.
        profiled_ms: what the whole takes with the profiler.
    """
    shortest = {kernel: min(run[kernel] for run in runs if kernel in run) for kernel in runs[0]}
    longer = min(sum(shortest.values()) - size_ms * 1e3, (profiled_ms - size_ms) * 1e3)
    overhead = max(0.0, longer) / len(shortest)
    shares = {kernel: max(_FLOOR, value - overhead) for kernel, value in shortest.items()}
    scale = size_ms / sum(shares.values())
    return {kernel: value * scale for kernel, value in shares.items()}
