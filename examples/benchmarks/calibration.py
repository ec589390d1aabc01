"""A piece of work that is always the same, timed beside what is measured: how fast the machine is just now.

One token through one stage of the benchmarks' decoder, in a process of its own on one core, its executor without a
pipeline around it: the kind of work that the stages do, and none of what a plan could be wrong about.
"""

from __future__ import annotations

import subprocess
import sys

from built import build

STEPS = 80

_STEP = """
import os, statistics, sys, time
os.sched_setaffinity(0, {int(sys.argv[2])})
import numpy as np
from pathlib import Path
from ruvrun.bundle import verify_bundle
from ruvrun.executors import Span
from ruvrun.executors.onnxruntime import load_decoder
from ruvrun.manifest import load_manifest
directory = Path(sys.argv[1])
spec = verify_bundle(directory, load_manifest(directory / "manifest.toml"), 0)
executor = load_decoder(directory, spec, context=256, slots=1, threads=1)
times = []
for step in range(int(sys.argv[3])):
    start = time.perf_counter()
    executor.step([Span(0, 64 + step, 1, 1)], {"input_ids": np.array([1000 + step])})
    times.append(time.perf_counter() - start)
print(1e3 * statistics.median(times[8:]))
"""


class Calibration:
    """Times the step on core ``cpu``."""

    def __init__(self, cpu: int) -> None:
        self._bundle = build("one-stage", [cpu], reuse=True).parent / "bundles" / "core-0"
        self._cpu = cpu

    def step_ms(self) -> float:
        """The median of some steps, in ms, in a new process."""
        arguments = [str(self._bundle), str(self._cpu), str(STEPS)]
        done = subprocess.run([sys.executable, "-c", _STEP, *arguments], capture_output=True, text=True, check=True)
        return float(done.stdout)
