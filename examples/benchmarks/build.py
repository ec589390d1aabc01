"""Seconds and peak memory of the build that a newcomer starts with, in a fresh directory, on two cores.

Memory is that of the largest process, as the kernel counted it. The keys, the costs and the bundles are all made
new; only the model file is there.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from built import MODEL
from harness import CACHE, Benchmark, Options, Target, finish, read_options, report, tell, two_cores, versions

BENCHMARK = Benchmark("build", "s", Target(at_most=45.0))
MOST_BYTES = int(1.5 * 2**30)
REPEATS = 3


def build_once(directory: Path) -> dict[str, float]:
    """One build; wall-clock seconds and bytes."""
    program = str(Path(sys.executable).with_name("ruvcompile"))
    command = [
        program,
        "build",
        str(MODEL),
        "--target",
        "host",
        "--nodes",
        "2",
        "--stages",
        "2",
        "--quiet",
        "--output",
        "dist",
    ]
    began = time.perf_counter()
    child = subprocess.Popen(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=sys.stderr)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {child.returncode}")
    return {"seconds": seconds, "bytes": used.ru_maxrss * 1024, "cpu_seconds": used.ru_utime + used.ru_stime}


def main() -> int:
    repeats = read_options(__doc__ or "", Options(pairs=REPEATS)).pairs
    cpus = two_cores()
    os.sched_setaffinity(0, cpus)
    MODEL.read_bytes()  # the file is there: in memory, too
    CACHE.mkdir(parents=True, exist_ok=True)
    runs = []
    for number in range(1, repeats + 1):
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="build-") as directory:
            runs.append(build_once(Path(directory)))
        tell(f"build {number} of {repeats}: {runs[-1]['seconds']:.1f} s, {runs[-1]['bytes'] / 2**30:.2f} GiB")
    seconds = [run["seconds"] for run in runs]
    peak = max(run["bytes"] for run in runs)
    details = {
        "what": "ruvcompile build --target host --nodes 2; seconds, and bytes of the largest process",
        "cpus": cpus,
        "peak_rss_bytes": peak,
        "most_bytes": MOST_BYTES,
    }
    result = report(
        BENCHMARK,
        statistics.median(seconds),
        runs=runs,
        spread=seconds,
        details=details,
        versions=versions(),
        also=peak <= MOST_BYTES,
    )
    return finish(result)


if __name__ == "__main__":
    sys.exit(main())
