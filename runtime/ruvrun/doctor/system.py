"""How the machine was set up: its disk, its swap, its clock, whether it goes to sleep, and what its network is."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Iterator
from pathlib import Path

from ruvrun.amounts import show_bytes
from ruvrun.doctor.facts import read
from ruvrun.doctor.finding import Finding, warning, well

_ROOM = 256 << 20
_SWAPPED = 64 << 20
_CLOCK_ERROR = 5
_SLOW_LINK = 1000


def disk(bundle: Path) -> Finding:
    """Whether the next release fits beside this one."""
    own = sum(path.stat().st_size for path in bundle.rglob("*") if path.is_file() and not path.is_symlink())
    free = shutil.disk_usage(bundle).free
    seen = f"{show_bytes(free)} free in {bundle}, the bundle takes {show_bytes(own)}"
    if free >= own + _ROOM:
        return well("disk", seen)
    why = "the next release is installed beside this one, and a full disk ends services of all kinds"
    return warning("disk", seen, why, "sudo apt-get clean && sudo journalctl --vacuum-size=50M")


def swap(root: Path) -> Finding:
    """Weights that are swapped out are read back at every token; compressed memory (zram) is no disk."""
    used = 0
    names = []
    for line in read(root / "proc/swaps").splitlines()[1:]:
        name, _, _, taken, *_ = line.split()
        if "zram" not in name:
            names.append(name)
            used += int(taken) * 1024
    if used <= _SWAPPED:
        return well("swap", f"{', '.join(names)}, {show_bytes(used)} in use" if names else "none on a disk")
    why = "each token reads all weights; those that were swapped out come back from the disk every time"
    off = "sudo dphys-swapfile swapoff" if "/var/swap" in names else "sudo swapoff -a"
    return warning("swap", f"{show_bytes(used)} in use on {', '.join(names)}", why, f"free memory, then: {off}")


def clock(root: Path) -> Finding:
    """Whether something keeps it right: a Pi has no battery, and begins where it was switched off."""
    if (root / "run/systemd/timesync/synchronized").exists() or kernel_clock_is_kept():
        return well("clock", "kept by the network's time")
    why = "certificates look invalid to a clock that is wrong, and logs of several nodes cannot be compared"
    return warning("clock", "nothing keeps it right", why, "sudo timedatectl set-ntp true")


def kernel_clock_is_kept() -> bool:
    """Whether whoever keeps this machine's clock has told the kernel so."""
    about = ctypes.create_string_buffer(512)  # struct timex, all zero: a question and no order
    try:
        return int(ctypes.CDLL(None).adjtimex(about)) not in (-1, _CLOCK_ERROR)
    except (OSError, AttributeError):
        return False


def suspend(root: Path) -> Finding:
    """A machine that falls asleep for lack of a user takes its stage with it: laptops and desktops, not boards."""
    able = "mem" in read(root / "sys/power/state").split()
    units = [root / "etc/systemd/system" / f"{name}.target" for name in ("sleep", "suspend")]
    masked = any(unit.is_symlink() and str(unit.readlink()) == "/dev/null" for unit in units)
    default = root / "etc/systemd/system/default.target"
    battery = any(read(path / "type").strip() == "Battery" for path in (root / "sys/class/power_supply").glob("*"))
    desktop = default.is_symlink() and default.readlink().name == "graphical.target"
    if not able or masked or not (battery or desktop):
        return well("suspend", "it stays awake" if not able or masked else "nothing sends it to sleep")
    why = "a node that falls asleep is lost to the others until somebody wakes it"
    hint = "sudo systemctl mask sleep.target suspend.target hibernate.target hybrid-sleep.target"
    seen = f"it can, as {'a laptop' if battery else 'a desktop'} does when nobody uses it"
    return warning("suspend", seen, why, hint)


def network(root: Path) -> Iterator[Finding]:
    """What each interface that is up can carry; an activation crosses a link at every step."""
    why = "an activation crosses a link at every step, and a slow or lossy one holds up all stages"
    for path in sorted((root / "sys/class/net").glob("*")):
        if not (path / "device").exists() or read(path / "operstate").strip() != "up":
            continue
        check = f"network {path.name}"
        speed = read(path / "speed").strip()
        if (path / "wireless").exists() or (path / "phy80211").exists():
            hint = f"use the wired network; until then: sudo iw dev {path.name} set power_save off"
            yield warning(check, "Wi-Fi", why, hint)
        elif speed.isdigit() and int(speed) < _SLOW_LINK:
            hint = f"a cable with all eight wires (Cat 5e), a port of 1 Gbit; then: sudo ethtool {path.name}"
            yield warning(check, f"{speed} Mbit/s", why, hint)
        else:
            yield well(check, f"{speed} Mbit/s" if speed.isdigit() else "wired")
