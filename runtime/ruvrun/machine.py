"""What this machine has: memory, and cores.

Everything is read from ``/proc`` and ``/sys`` (Linux only, for now), and nothing is kept: each call is a
fresh look.
"""

from __future__ import annotations

import contextlib
import os
import platform
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ruvrun.errors import MachineError

_MEMINFO = Path("/proc/meminfo")
_CPUINFO = Path("/proc/cpuinfo")
_CGROUP = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
_FEATURES = (
    *("sse4_1", "avx", "fma", "f16c", "avx2", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16"),
    *("amx_int8", "amx_bf16", "asimd", "asimdhp", "asimddp", "i8mm", "bf16", "sve", "sve2"),
)


def peak_bytes() -> int:
    """The most memory this process has held. ``getrusage`` would count what its parent held when it was started."""
    (peak,) = re.findall(r"^VmHWM:\s+(\d+) kB$", Path("/proc/self/status").read_text("utf-8"), re.MULTILINE)
    return 1024 * int(peak)


def forget_peak() -> None:
    """Let ``peak_bytes`` begin again with what this process holds now; where the kernel does not, it goes on."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def memory_available() -> int:
    """Bytes a new process can use: what the kernel calls available, within the limit of our control group.

    What the group only caches of files it will give up, so it does not count as used.
    """
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    available = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = _number(_CGROUP / "memory.max"), _number(_CGROUP / "memory.current")
    if limit is not None and used is not None:
        available = min(available, max(0, limit - used + _cached(_CGROUP / "memory.stat")))
    return available


def memory_total() -> int:
    """Bytes of memory that this machine has, or that our control group lets it have."""
    fields = dict(line.split(":", 1) for line in _MEMINFO.read_text().splitlines() if ":" in line)
    return min(int(fields["MemTotal"].split()[0]) * 1024, _number(_CGROUP / "memory.max") or sys.maxsize)


def has_cpu_quota() -> bool:
    """Whether a control group of this process limits its CPU time, as containers' are: then it stands still part of the
    time, and what it needs by its own clock says nothing of when it is done.
    """
    for line in _OWN_GROUPS.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        for root in (_CGROUP, _CGROUP / "unified", _CGROUP / controllers, _CGROUP / "cpu"):
            group = root / path.lstrip("/")
            for each in (group, *group.parents):
                if each != root and root not in each.parents:
                    break
                if _limits(each):
                    return True
    return False


def _limits(group: Path) -> bool:
    """Whether this group has a quota: ``cpu.max`` of version 2, ``cpu.cfs_quota_us`` of version 1."""
    try:
        if (group / "cpu.max").is_file():
            return not (group / "cpu.max").read_text().startswith("max")
        return (_number(group / "cpu.cfs_quota_us") or -1) > 0
    except OSError:
        return False


def allowed() -> set[int]:
    """The cores this process may use, by number."""
    return os.sched_getaffinity(0)


def cores() -> int:
    """How many cores this process may use."""
    return len(allowed())


def cpu_name() -> str:
    """The CPU as Linux tells it; on Arm, where it has no name there, implementer and part."""
    found = _cpuinfo()
    part = f"implementer {found['CPU implementer']} part {found['CPU part']}" if "CPU part" in found else ""
    return found.get("model name", part) or platform.machine()


def cpu_features() -> tuple[str, ...]:
    """Those of the CPU's features that matrix kernels are chosen by, by the names Linux has for them."""
    found = _cpuinfo()
    has = {*found.get("flags", "").split(), *found.get("Features", "").split()}
    return tuple(name for name in _FEATURES if name in has)


def pin(cpus: Sequence[int]) -> None:
    """Keep this process, and every thread it starts from now on, on ``cpus``; none means: where it may run now.

    Raises:
        MachineError: this machine has no such core, or may not use it.
    """
    if not cpus:
        return
    try:
        os.sched_setaffinity(0, cpus)
    except (OSError, ValueError, OverflowError) as error:  # the latter two: a number that no core can have
        raise MachineError(
            "cpus-refused",
            f"cannot run on cores {', '.join(map(str, cpus))}: {getattr(error, 'strerror', error)}",
            context=[f"this process may use {', '.join(map(str, sorted(allowed())))}"],
            hint="correct `cpus` of this node, and build again",
        ) from None


def _cached(stat: Path) -> int:
    try:
        lines = stat.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def _cpuinfo() -> dict[str, str]:
    """What ``/proc/cpuinfo`` says of the first core."""
    found: dict[str, str] = {}
    with contextlib.suppress(OSError):
        for line in _CPUINFO.read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    return found


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
