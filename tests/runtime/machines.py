"""Machines that nobody has at hand: trees of /proc, /sys, /etc and /run, to be looked at in place of this one's."""

from __future__ import annotations

from pathlib import Path

PI_FLAGS = "fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"
GOOD = {
    "proc/cpuinfo": f"processor\t: 0\nFeatures\t: {PI_FLAGS}\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n",
    "proc/cgroups": "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t0\t60\t1\nmemory\t0\t60\t1\n",
    "proc/swaps": "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n",
    "run/systemd/timesync/synchronized": "",
    "sys/power/state": "freeze\n",
    "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled": "0\n",
    "sys/class/hwmon/hwmon0/name": "rpi_volt\n",
    "sys/class/hwmon/hwmon0/in0_lcrit_alarm": "0\n",
    "sys/class/net/eth0/operstate": "up\n",
    "sys/class/net/eth0/speed": "1000\n",
    "sys/class/net/eth0/device/vendor": "",
    "sys/class/net/lo/operstate": "unknown\n",
}
FIRMWARE = "sys/devices/platform/soc@107c000000/soc@107c000000:firmware/get_throttled"


def pi(directory: Path, **changed: str) -> Path:
    """A Raspberry Pi 5 on which all is well, but for the files that are ``changed``."""
    return write(directory, GOOD | changed)


def write(directory: Path, files: dict[str, str]) -> Path:
    """A root of these files."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory
