"""A piece of work that is always the same, timed beside what is measured: how fast the machine is just now.

One token through one stage of the benchmarks' decoder, in a process of its own on each of some cores, its executor
without a pipeline around it: the kind of work that the stages do, and none of what a plan could be wrong about. Loaded
anew each time, as the stages are: how many large pages the kernel has for weights is part of how fast it is; and
``TIMES`` times, since one process is up to 5 % faster than the next on a machine that does nothing else. Several
cores work at the same time: how much they cost each other differs from hour to hour on a machine with neighbours.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from collections.abc import Sequence

from built import build

STEPS = 80
TIMES = 3

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
print("loaded", flush=True)
sys.stdin.readline()
for step in range(int(sys.argv[3])):
    start = time.perf_counter()
    executor.step([Span(0, 64 + step, 1, 1)], {"input_ids": np.array([1000 + step])})
    times.append(time.perf_counter() - start)
print(1e3 * statistics.median(times[8:]))
"""


class Calibration:
    """Times the step on the first of ``cpus``, or on all of them at the same time."""

    def __init__(self, cpus: Sequence[int]) -> None:
        self._bundle = build("one-stage", cpus[:1], reuse=True).parent / "bundles" / "core-0"
        self._cpus = tuple(cpus)

    def step_ms(self, cores: int) -> float:
        """The median of some steps, in ms, in new processes on so many cores: the mean of those, and of ``TIMES``."""
        return statistics.fmean(self._once(cores) for _ in range(TIMES))

    def _once(self, cores: int) -> float:
        workers = []
        for cpu in self._cpus[:cores]:
            argv = [sys.executable, "-c", _STEP, str(self._bundle), str(cpu), str(STEPS)]
            workers.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        for worker in workers:
            assert worker.stdout is not None
            worker.stdout.readline()
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.write("\n")
            worker.stdin.flush()
        return statistics.fmean(float(worker.communicate()[0]) for worker in workers)
