"""One of two nodes slowed to half: what the plan makes of it, against the equal split and against the ideal.

The slow node is core 1 under a CPU quota: 1 ms in every 2, set by the kernel's cpu controller, which root may do. It
is measured as a real slow machine would be: a probe is profiled there, and the build is given that table. Since it is
a kind of machine of its own, it has a target of its own, a copy of ``host``.

The ideal is what two nodes of speed 1 and 1/2 can do at most: 1.5 times one node.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from built import MODEL, bench, build, command
from harness import ROOT, Options, tell

PERIOD_US, QUOTA_US = 2000, 1000
IDEAL = 1.5
SLOW = "half"
_CONTROLLER = Path("/sys/fs/cgroup/cpu")


@contextmanager
def quota() -> Iterator[Path | None]:
    """A control group whose processes get half a core; None where this machine does not let us make one."""
    group = _CONTROLLER / f"ruv-half-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(QUOTA_US))
    except OSError as error:
        tell(f"no CPU quota can be set here ({error.strerror}): version 1 of the cpu controller, and root, are needed")
        yield None
        return
    try:
        yield group
    finally:
        group.rmdir()


def slowed(cpus: tuple[int, int], home: Path, options: Options) -> dict[str, Any]:
    """Tokens/s of the planned and of the equal split with one slow node, as shares of the ideal; 0 without a quota."""
    one = build("one-stage", cpus[:1], reuse=True)
    equal = build("two-stages", cpus, reuse=True)
    with quota() as group:
        if group is None:
            return {"ratio": 0.0, "means": "none: no CPU quota can be set here"}
        planned = _planned(home / "slow", cpus, group, reuse=options.reuse)
        found: dict[str, list[float]] = {"planned": [], "equal": []}
        for number in range(1, options.pairs + 1):
            alone = bench(one, options, streams=1)["tokens_per_s"]
            for name, manifest in (("planned", planned), ("equal", equal)):
                found[name].append(_slow_bench(manifest, options, group) / (IDEAL * alone))
            told = ", ".join(f"{name} {shares[-1]:.3f}" for name, shares in found.items())
            tell(f"slowed, {number} of {options.pairs}: {told} of the ideal")
    stages = json.loads((planned.parent / "plan.json").read_text())["stages"]
    return {
        "ratio": statistics.median(found["planned"]),
        "equal": statistics.median(found["equal"]),
        "runs": found,
        "means": f"a CPU quota of {QUOTA_US} us in {PERIOD_US} us for the processes of core {cpus[1]}",
        "ideal": "1.5 x one node with one stream; the two nodes serve two streams",
        "graph_nodes": [stage["graph_nodes"] for stage in stages],
    }


def _planned(folder: Path, cpus: Sequence[int], group: Path, *, reuse: bool) -> Path:
    """A build for a fleet of this core and the slow one, each measured as it is."""
    manifest = folder / "dist" / "manifest.toml"
    if reuse and manifest.is_file():
        return manifest
    shutil.rmtree(folder, ignore_errors=True)
    target = folder / "targets" / SLOW
    target.mkdir(parents=True)
    (target / "target.toml").write_text((ROOT / "targets" / "host" / "target.toml").read_text())
    more = ["--targets-dir", str(folder / "targets")]
    tables = []
    for name, cpu, where in (("host", cpus[0], None), (SLOW, cpus[1], group)):
        probe, table = folder / f"probe-{name}", folder / f"{name}.toml"
        command(["ruvcompile", "probe", str(MODEL), "--target", name, "--quant", "int4", *more, "-o", str(probe)])
        profile = ["-m", "ruvrun", "profile", str(probe), "--cpus", str(cpu), "-o", str(table)]
        _inside(where, [sys.executable, *profile])
        tables += ["--costs", str(table)]
    (folder / "fleet.toml").write_text(
        "format = 1\n"
        f'[[node]]\nname = "core-0"\ntarget = "host"\ncpus = [{cpus[0]}]\nthreads = 1\n'
        f'[[node]]\nname = "core-1"\ntarget = "{SLOW}"\naddress = "local"\ncpus = [{cpus[1]}]\nthreads = 1\n'
    )
    fleet = ["--fleet", str(folder / "fleet.toml"), "--stages", "2", "--streams", "2", "--quant", "int4"]
    command(["ruvcompile", "build", str(MODEL), *fleet, *more, *tables, "--quiet", "-o", str(folder / "dist")])
    return manifest


def _inside(group: Path | None, arguments: Sequence[str]) -> None:
    """Run a command in a control group."""

    def enter() -> None:
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    done = subprocess.run(list(arguments), preexec_fn=enter, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"error: {' '.join(arguments)} ended with {done.returncode}\n{done.stderr}{done.stdout}")


def _slow_bench(manifest: Path, options: Options, group: Path) -> float:
    """Tokens/s of two streams, the process of core-1 in the control group as soon as it is there."""
    done = threading.Event()
    moved = threading.Thread(target=_move, args=(group, done))
    moved.start()
    try:
        return float(bench(manifest, options, streams=2)["tokens_per_s"])
    finally:
        done.set()
        moved.join()


def _move(group: Path, done: threading.Event) -> None:
    """Put the stage of core-1 into the control group, as soon as it is there."""
    while not done.is_set():
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue  # it has ended meanwhile
            if b"ruvrun" in words and b"stage" in words and b"core-1" in words:
                (group / "cgroup.procs").write_text(process.name)
                return
        time.sleep(0.02)
