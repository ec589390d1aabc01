"""One of two nodes slowed to half: what the plan makes of it, against the equal split and against the ideal.

    python slow.py [priority|turns] [--pairs N] [--reuse]

Half of core 1 is taken away. ``priority``, which ``prediction`` uses: a process of real-time priority works there for
0.5 ms of every 1 ms, so that whatever else is on that core has the other half, evenly. ``turns``: a process of the same
priority that always works, with which the kernel lets the others take turns. A CPU quota would be no half: this kernel
looks at quotas at its ticks, every 4 ms, so each step waits for the end of a tick as well.

The slow node is measured as a real slow machine would be: a probe is profiled there, by the clock, and the build is
given that table. Since it is a kind of machine of its own, it has a target of its own, a copy of ``host``.

The ideal is what both nodes do that have a whole copy each and hand nothing over: two pipelines of one stage, at work
at the same time, with steps of as many rows. What each does alone, one after the other, is told beside that.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from built import MODEL, bench, build, command
from harness import CACHE, ROOT, Options, read_options, tell, two_cores

SLOW = "half"
PERIOD_S = 1e-3
STREAMS = (2, 8)
MEANS = {
    "priority": f"a process of real-time priority that takes {1e3 * PERIOD_S / 2:g} ms of every {1e3 * PERIOD_S:g} ms",
    "turns": "a process of the same priority that always works",
}
_CONTROLLER = Path("/sys/fs/cgroup/cpu")
_TAKER = """
import gc, os, sys, time
cpu, period, means = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
os.sched_setaffinity(0, {cpu})
if means == "priority":
    os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
gc.disable()
print("takes", flush=True)
parent, clock, worked = os.getppid(), time.perf_counter, time.thread_time
ends, due = clock(), worked()
while os.getppid() == parent:
    ends, due = ends + period, due + period / 2
    while worked() < due:
        pass
    if means == "priority" and ends > clock():
        time.sleep(max(0.0, ends - clock()))
    else:
        ends, due = clock(), worked()
"""
_LEFT = """
import os, sys, time
os.sched_setaffinity(0, {int(sys.argv[1])})
began, own = time.perf_counter(), time.thread_time()
while time.perf_counter() < began + 0.5:
    pass
print((time.thread_time() - own) / (time.perf_counter() - began))
"""


@contextmanager
def half_taken(cpu: int, means: str) -> Iterator[float]:
    """A core of which half is left to others; which share that is, as measured, 0 where it cannot be taken."""
    arguments = [sys.executable, "-c", _TAKER, str(cpu), str(PERIOD_S), means]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as taker:
        try:
            assert taker.stdout is not None and taker.stderr is not None
            if not taker.stdout.readline():
                tell(f"half of a core cannot be taken here: {taker.stderr.read().strip().rpartition(chr(10))[2]}")
                yield 0.0
                return
            done = subprocess.run(
                [sys.executable, "-c", _LEFT, str(cpu)], capture_output=True, text=True, check=True, timeout=60
            )
            yield float(done.stdout)
        finally:
            taker.kill()


@contextmanager
def by_the_clock() -> Iterator[Path | None]:
    """A control group with a quota that is never reached: what is profiled in it is timed by the clock.

    A thread's own time, by which a profile goes otherwise, is the same on a core that others have half of.
    """
    group = _CONTROLLER / f"ruv-clock-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text("100000")
        (group / "cpu.cfs_quota_us").write_text("200000")
    except OSError as error:
        tell(f"no CPU quota can be set here ({error.strerror}): version 1 of the cpu controller, and root, are needed")
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def slowed(cpus: tuple[int, int], home: Path, options: Options, means: str = "priority") -> dict[str, Any]:
    """Tokens/s of the planned and of the equal split with one slow node, as shares of the ideal; 0 where half of a
    core cannot be taken.
    """
    one, equal = build("one-stage", cpus[:1], reuse=True), build("two-stages", cpus, reuse=True)
    with half_taken(cpus[1], means) as left, by_the_clock() as group:
        if not left or group is None:
            return {"ratio": 0.0, "means": "none: half of a core cannot be taken here"}
        tell(f"slowed by {MEANS[means]}: {left:.3f} of core {cpus[1]} is left")
        folder = home / f"slow-{means}"
        tables = _tables(folder, cpus, group, reuse=options.reuse)
        runs, planned = [], {}
        for streams in STREAMS:
            sides = {"planned": ("--stages", "2", "--replicas", "1"), "ideal": ("--stages", "1", "--replicas", "2")}
            made = {
                name: _build(folder / f"{name}-{streams}", tables, (*shape, "--streams", str(streams)), options)
                for name, shape in sides.items()
            }
            planned[streams] = made["planned"]
            for number in range(1, options.pairs + 1):
                rates = {name: _rate(each, options, streams) for name, each in (made | {"equal": equal}).items()}
                for name, cpu in zip(("full", "half"), cpus, strict=True):
                    rates[name] = _rate(one, options, streams // 2, "--cpus", str(cpu))
                runs.append({"streams": streams, **rates})
                told = ", ".join(f"{name} {rates[name] / rates['ideal']:.3f}" for name in ("planned", "equal"))
                tell(f"slowed, {streams} streams, {number} of {options.pairs}: {told} of the ideal")
    found = {streams: shares([run for run in runs if run["streams"] == streams]) for streams in STREAMS}
    return {
        "ratio": found[STREAMS[-1]]["planned"],
        "means": f"{MEANS[means]} on core {cpus[1]}, of which {left:.3f} is left",
        "ideal": "a copy of the model on each node, both at work, with steps of as many rows",
        "of_streams": STREAMS[-1],
        "shares": found,
        "runs": runs,
        "graph_nodes": {streams: _graph_nodes(manifest) for streams, manifest in planned.items()},
    }


def shares(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Medians over runs with as many streams, as shares of the ideal: of the planned and of the equal split.

    ``planned_of_alone`` and ``planned_of_1.5`` are of what both nodes do one after the other, and of 1.5 times the full
    one.
    """

    def median(what: Any) -> float:
        return statistics.median(map(what, runs))

    return {
        "planned": median(lambda run: run["planned"] / run["ideal"]),
        "equal": median(lambda run: run["equal"] / run["ideal"]),
        "planned_of_alone": median(lambda run: run["planned"] / (run["full"] + run["half"])),
        "planned_of_1.5": median(lambda run: run["planned"] / (1.5 * run["full"])),
        "half_of_full": median(lambda run: run["half"] / run["full"]),
    }


def _tables(folder: Path, cpus: Sequence[int], group: Path, *, reuse: bool) -> list[Path]:
    """Cost tables of this machine and of the slow one, each measured on a probe as it is."""
    tables = [folder / "host.toml", folder / f"{SLOW}.toml"]
    if reuse and all(table.is_file() for table in tables):
        return tables
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / "targets" / SLOW
    target.mkdir(parents=True)
    (target / "target.toml").write_text((ROOT / "targets" / "host" / "target.toml").read_text())
    (folder / "fleet.toml").write_text(
        "format = 1\n"
        f'[[node]]\nname = "core-0"\ntarget = "host"\naddress = "local"\ncpus = [{cpus[0]}]\nthreads = 1\n'
        f'[[node]]\nname = "core-1"\ntarget = "{SLOW}"\naddress = "local"\ncpus = [{cpus[1]}]\nthreads = 1\n'
    )
    more = ["--targets-dir", str(folder / "targets"), "--quant", "int4"]
    for table, cpu, where in zip(tables, cpus, (None, group), strict=True):
        probe = folder / f"probe-{table.stem}"
        command(["ruvcompile", "probe", str(MODEL), "--target", table.stem, *more, "-o", str(probe)])
        _profile(probe, cpu, table, where)
    return tables


def _profile(probe: Path, cpu: int, table: Path, group: Path | None) -> None:
    """Measure a probe on a core, in a control group."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    arguments = [sys.executable, "-m", "ruvrun", "profile", str(probe), "--cpus", str(cpu), "-o", str(table)]
    done = subprocess.run(arguments, preexec_fn=enter, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(arguments)} ended with {done.returncode}\n{done.stderr}{done.stdout}")


def _build(folder: Path, tables: Sequence[Path], shape: Sequence[str], options: Options) -> Path:
    """A build for both nodes; the manifest."""
    manifest, home = folder / "dist" / "manifest.toml", folder.parent
    if not (options.reuse and manifest.is_file()):
        costs = [word for table in tables for word in ("--costs", str(table))]
        given = ["--fleet", str(home / "fleet.toml"), "--targets-dir", str(home / "targets"), *costs]
        command(
            [
                "ruvcompile",
                "build",
                str(MODEL),
                *given,
                *shape,
                "--quant",
                "int4",
                "--quiet",
                "-o",
                str(manifest.parent),
            ]
        )
    return manifest


def _rate(manifest: Path, options: Options, streams: int, *more: str) -> float:
    return float(bench(manifest, options, streams=streams, more=more)["tokens_per_s"])


def _graph_nodes(manifest: Path) -> list[int]:
    return [stage["graph_nodes"] for stage in json.loads((manifest.parent / "plan.json").read_text())["stages"]]


if __name__ == "__main__":
    chosen = [word for word in sys.argv[1:] if word in MEANS]
    others = read_options(__doc__ or "", arguments=[word for word in sys.argv[1:] if word not in MEANS])
    print(json.dumps(slowed(two_cores(), CACHE / "prediction", others, *chosen[:1])))
