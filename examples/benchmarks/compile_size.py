"""Seconds and peak memory of a build whose model is larger than the memory, on two cores.

    compile_size.py compile-8b      llama 3.1 8B's shapes, random bf16 -> int4 in two bundles: at most 10 min and 3 GiB
    compile_size.py compile-70b     llama 3.1 70B's, from a sparse file -> int4 in four bundles: at most 6 GiB

Everything that ``build`` does is in it: reading, quantising, measuring, the golden checks, the loss against the file.
The checkpoint is made first (``checkpoint.py``) and is not in the time. Memory is that of the largest process, as the
kernel counted it: pages of mapped files are in it. Where the disk has no room, nothing is done, and it says so.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint import SHAPES, write_checkpoint
from harness import CACHE, Benchmark, Target, finish, report, tell, two_cores, versions

GIB = 2**30


@dataclass(frozen=True)
class Size:
    """What is built, and what it may take."""

    benchmark: Benchmark
    shapes: str
    nodes: str
    disk: int
    most_bytes: int


SIZES = {
    "compile-8b": Size(Benchmark("compile-8b", "s", Target(at_most=600.0)), "8b", "2", 24 * GIB, 3 * GIB),
    "compile-70b": Size(
        Benchmark("compile-70b", "GiB", Target(at_most=6.0)), "70b", "one,two,three,four", 50 * GIB, 6 * GIB
    ),
}


def build(model: Path, nodes: str, directory: Path) -> dict[str, Any]:
    """One build; wall-clock and CPU seconds, bytes of its largest process, and what it says of itself."""
    program = str(Path(sys.executable).with_name("ruvcompile"))
    stages = nodes if nodes.isdigit() else str(nodes.count(",") + 1)
    place = ["--target", "host", "--nodes", nodes, "--stages", stages, "--output", str(directory / "dist")]
    # Nodes with names are other machines, like this one: four stages of a 70B have no room on one of 24 GiB.
    space = ["--context", "2048", "--streams", "1"]
    command = [program, "build", str(model), *place, *space, "--quant", "int4", "--json"]
    told = directory / "told.json"
    began = time.perf_counter()
    with told.open("wb") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output)
        _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"error: {' '.join(command)} ended with {child.returncode}\n{told.read_text()}")
    result = json.loads(told.read_text())
    return {
        "seconds": seconds,
        "bytes": used.ru_maxrss * 1024,
        "cpu_seconds": used.ru_utime + used.ru_stime,
        "id": result["id"],
        "loss": result["loss"],
        "weight_bytes": sum(stage["weight_bytes"] for stage in result["stages"]),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("name", choices=sorted(SIZES))
    parser.add_argument("--reuse", action="store_true", help="take the checkpoint of the last time")
    parser.add_argument("--keep", action="store_true", help="leave checkpoint and build where they are")
    given = parser.parse_args()
    size = SIZES[given.name]
    directory = CACHE / given.name
    model = directory / f"random-{size.shapes}"
    complete = model / "model.safetensors.index.json"
    reused = given.reuse and complete.is_file()
    if not reused:
        shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(directory / "dist", ignore_errors=True)
    held = sum(file.stat().st_blocks * 512 for file in model.glob("*")) if reused else 0
    free = shutil.disk_usage(directory).free + held
    if free < size.disk:
        why = f"{size.disk / GIB:.0f} GiB of disk are needed in {directory}, {free / GIB:.0f} are free"
        tell(f"{given.name}: skipped, {why}")
        print(json.dumps({"name": given.name, "skipped": why}), flush=True)
        return 0
    cpus = two_cores()
    os.sched_setaffinity(0, cpus)
    try:
        if not reused:
            tell(f"making {model}")
            write_checkpoint(SHAPES[size.shapes], model)
        tell(f"building it for the nodes {size.nodes}")
        run = build(model, size.nodes, directory)
    finally:
        if not given.keep:
            shutil.rmtree(directory / "dist", ignore_errors=True)
            if not given.reuse:
                shutil.rmtree(directory, ignore_errors=True)
    tell(f"{run['seconds']:.0f} s, {run['bytes'] / GIB:.2f} GiB, {run['weight_bytes'] / GIB:.1f} GiB of weights")
    value = run["seconds"] if size.benchmark.unit == "s" else run["bytes"] / GIB
    details = {
        "what": f"ruvcompile build --nodes {size.nodes} --quant int4; seconds, and bytes of the largest process",
        "cpus": cpus,
        "peak_rss_bytes": run["bytes"],
        "most_bytes": size.most_bytes,
    }
    result = report(
        size.benchmark,
        value,
        runs=[run],
        spread=[value],
        details=details,
        versions=versions(),
        also=run["bytes"] <= size.most_bytes,
    )
    return finish(result)


if __name__ == "__main__":
    sys.exit(main())
