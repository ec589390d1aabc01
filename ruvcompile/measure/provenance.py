"""On what a number was measured."""

from __future__ import annotations

import datetime
import platform
from importlib import metadata
from pathlib import Path

from ruvrun.costs import Provenance
from ruvrun.machine import cores


def provenance() -> Provenance:
    """This machine, its CPU, the versions that matter, today."""
    versions = [f"{name} {metadata.version(name)}" for name in ("ruvrun", "onnxruntime")]
    return Provenance(
        machine=f"{platform.machine()}, {cores()} cores",
        cpu=_cpu(),
        software=", ".join([*versions, f"Python {platform.python_version()}"]),
        date=datetime.date.today().isoformat(),
    )


def _cpu() -> str:
    """The CPU's name as Linux tells it; on Arm, where it has none, implementer and part."""
    found: dict[str, str] = {}
    try:
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    except OSError:
        return platform.processor() or platform.machine()
    part = f"implementer {found['CPU implementer']} part {found['CPU part']}" if "CPU part" in found else ""
    return found.get("model name", part) or platform.machine()
