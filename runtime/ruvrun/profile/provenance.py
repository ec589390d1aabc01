"""On what a number was measured."""

from __future__ import annotations

import datetime
import platform
from importlib import metadata

from ruvrun import machine
from ruvrun.backends import package_of
from ruvrun.costs import Provenance
from ruvrun.executors.openvino.forms import moved_to


def provenance(backend: str, model: str, threads: int) -> Provenance:
    """This machine, its CPU, the versions that matter, today; a link has no back end, and its ``backend`` is empty."""
    versions = [f"{name} {metadata.version(name)}" for name in ("ruvrun", package_of(backend)) if name]
    if device := moved_to(backend):
        versions[-1] += f" on {device}"
    return Provenance(
        machine=f"{platform.machine()}, {machine.cores()} cores",
        cpu=machine.cpu_name(),
        software=", ".join([*versions, f"Python {platform.python_version()}"]),
        date=datetime.date.today().isoformat(),
        model=model,
        features=machine.cpu_features(),
        threads=threads,
    )
