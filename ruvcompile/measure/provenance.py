"""On what a number was measured."""

from __future__ import annotations

import datetime
import platform
from importlib import metadata

from ruvrun.costs import Provenance
from ruvrun.machine import cores, cpu_features, cpu_name


def provenance() -> Provenance:
    """This machine, its CPU, the versions that matter, today."""
    versions = [f"{name} {metadata.version(name)}" for name in ("ruvrun", "onnxruntime")]
    return Provenance(
        machine=f"{platform.machine()}, {cores()} cores",
        cpu=cpu_name(),
        software=", ".join([*versions, f"Python {platform.python_version()}"]),
        date=datetime.date.today().isoformat(),
        features=cpu_features(),
    )
