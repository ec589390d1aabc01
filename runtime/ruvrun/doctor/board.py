"""The hardware: what its CPU can do, whether it gets enough power, whether it is too hot, how it was booted."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ruvrun.doctor.facts import read
from ruvrun.doctor.finding import Finding, failure, warning, well
from ruvrun.toml import FORMAT, read_toml

MACHINE = "node/machine.toml"
VCGENCMD = "usr/bin/vcgencmd"
_UNDERVOLTAGE, _CAPPED, _THROTTLED, _HOT = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_SINCE_BOOT = 16
_WHY_POWER = (
    "a board that lacks power lowers its clock, the slowest stage sets the pace of all, and cards get corrupted"
)
_HINT_POWER = "use the supply made for this board (Pi 5: 5 V, 5 A) and its own cable, then: vcgencmd get_throttled"
_WHY_HEAT = "a hot CPU lowers its clock, and the slowest stage sets the pace of all"
_HINT_HEAT = "give it a fan or a larger heat sink; watch it with: cat /sys/class/thermal/thermal_zone0/temp"


class Built(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of ``node/machine.toml``: the kind of machine that a bundle was built for."""

    title: str
    arch: str
    features: list[str] = []
    format: int = FORMAT


def board(bundle: Path, root: Path) -> Iterator[Finding]:
    """Look at everything; ``bundle`` says what it needs, ``root`` is where ``proc`` and ``sys`` are."""
    yield from _processor(bundle, root)
    yield _pages(os.sysconf("SC_PAGE_SIZE"))
    yield from _memory_groups(root)
    yield from _power(root)
    yield from _heat(root)


def _processor(bundle: Path, root: Path) -> Iterator[Finding]:
    flags: set[str] = set()
    for line in read(root / "proc/cpuinfo").splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            flags |= set(value.split())
    if not (bundle / MACHINE).is_file():
        return  # of an older build, which does not say
    built = read_toml(bundle / MACHINE, Built, "description of a machine")
    if built.arch != platform.machine():
        seen = f"the bundle is for {built.arch} ({built.title}), this machine is {platform.machine()}"
        why = "its packages and the plan are of another kind of machine"
        yield failure("CPU", seen, why, "copy this machine's own bundle: ./deliver/deliver.sh, or dist/bundles/NODE", 7)
    elif missing := [feature for feature in built.features if feature not in flags]:
        why = "the plan counts on kernels that need them, and was made for another kind of machine"
        seen = f"it has no {', '.join(missing)}; the bundle is for: {built.title}"
        yield failure("CPU", seen, why, "build for the target that this machine is: ruvcompile targets", 7)
    else:
        yield well("CPU", f"{built.arch}{', ' if built.features else ''}{', '.join(built.features)}")


def _pages(page: int) -> Finding:
    seen = f"{page // 1024} KiB"
    if page <= 1 << 16:
        return well("page size", seen)
    why = "wheels are made for pages of at most 64 KiB, and do not load with larger ones"
    hint = "boot a kernel with smaller pages: sudo apt-get install linux-image-arm64 && sudo reboot"
    return failure("page size", seen, why, hint, 7)


def _memory_groups(root: Path) -> Iterator[Finding]:
    """A Pi's firmware boots with memory control groups off, unless it is told otherwise."""
    rows = [line.split() for line in read(root / "proc/cgroups").splitlines() if not line.startswith("#")]
    told = [row[3] != "0" for row in rows if row and row[0] == "memory"]
    listed = root / "sys/fs/cgroup/cgroup.controllers"
    on = told[0] if told else "memory" in read(listed).split() if listed.is_file() else None
    if on is None:
        return
    if on:
        yield well("memory control groups", "on")
        return
    yield warning(
        "memory control groups",
        "the kernel was started with them off",
        "limits of memory (MemoryMax=, containers) do nothing, one process can take all of it, and k3s does not start",
        "sudo sed -i '1s/$/ cgroup_enable=memory cgroup_memory=1/' /boot/firmware/cmdline.txt && sudo reboot",
    )


def _power(root: Path) -> Iterator[Finding]:
    bits = _throttled(root)
    alarms = [
        path
        for path in (root / "sys/class/hwmon").glob("hwmon*")
        if read(path / "name").strip() == "rpi_volt" and read(path / "in0_lcrit_alarm").strip() == "1"
    ]
    if bits is None and not (root / "sys/class/hwmon").is_dir():
        return
    now = bits or 0
    if alarms or now & _UNDERVOLTAGE:
        yield warning("power", "the voltage is too low now", _WHY_POWER, _HINT_POWER)
    elif now >> _SINCE_BOOT & _UNDERVOLTAGE:
        yield warning("power", "the voltage has been too low since it was started", _WHY_POWER, _HINT_POWER)
    elif bits is not None:
        yield well("power", "no undervoltage since it was started")
    if bits is None:
        return
    for shift, when in ((0, "now"), (_SINCE_BOOT, "since it was started")):
        if now >> shift & (_CAPPED | _THROTTLED | _HOT):
            yield warning("throttling", f"the clock was lowered, {when}", _WHY_HEAT, _HINT_HEAT)
            return
    yield well("throttling", "the clock was not lowered since it was started")


def _throttled(root: Path) -> int | None:
    """What a Pi's firmware says of voltage and heat, in bits; None where there is no such firmware."""
    for path in (root / "sys/devices/platform").glob("*/*firmware*/get_throttled"):
        return _number(read(path).strip())
    command = root / VCGENCMD
    if not command.exists():
        return None
    try:
        done = subprocess.run([command, "get_throttled"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return _number(done.stdout.strip().rpartition("=")[2])


def _heat(root: Path) -> Iterator[Finding]:
    """What the kernel counts on a PC."""
    counts = [
        int(text)
        for path in (root / "sys/devices/system/cpu").glob("cpu[0-9]*/thermal_throttle/core_throttle_count")
        if (text := read(path).strip()).isdigit()
    ]
    if any(counts):
        seen = f"cores lowered their clock {sum(counts)} times since it was started"
        yield warning("throttling", seen, _WHY_HEAT, _HINT_HEAT)
    elif counts:
        yield well("throttling", "no core lowered its clock since it was started")


def _number(text: str) -> int | None:
    try:
        return int(text, 16)
    except ValueError:
        return None
