"""The packages a node needs, whether they are there, and whether they are new enough for what its bundle asks."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterator
from pathlib import Path

from ruvrun import machine
from ruvrun.backends import BACK_ENDS, package_of
from ruvrun.bundle import requires
from ruvrun.doctor.finding import Finding, failure, well
from ruvrun.placement import Placement
from ruvrun.session import too_old

PACKAGES = ("ruvrun", "numpy", "pyzmq", "msgspec", "click")
HEAD_PACKAGES = ("tokenizers", "jinja2", "starlette", "uvicorn")
OLDEST_PYTHON = (3, 11)


def python() -> Iterator[Finding]:
    """The interpreter."""
    seen = f"{platform.python_version()} on {platform.machine()}, {machine.cores()} cores"
    if sys.version_info >= OLDEST_PYTHON:
        yield well("python", seen)
    else:
        why = "ruvrun and its packages are not made for older ones"
        hint = "sudo apt-get install python3.11, then: sudo node/install.sh --python python3.11"
        yield failure("python", f"{seen}; 3.11 or newer is needed", why, hint, 7)


def packages(placement: Placement) -> Iterator[Finding]:
    """Every package that this machine's part imports, with its version."""
    wanted = _required(placement)
    backends = sorted({stage.backend for stage in placement.manifest.stage})
    for package in PACKAGES:
        yield _package(package, "pip install ruvrun", wanted)
    if placement.stages:
        for package in sorted({package_of(backend) for backend in backends if backend in BACK_ENDS}):
            yield _package(package, f"pip install 'ruvrun[{package}]'", wanted)
        for backend in backends:
            if backend not in BACK_ENDS:
                why = "a stage runs only on the back end that it was compiled for"
                hint = "pip install --upgrade ruvrun"
                yield failure(f"back end {backend}", "this version of ruvrun does not know it", why, hint, 3)
    if placement.head:
        for package in HEAD_PACKAGES:
            yield _package(package, "pip install 'ruvrun[head]'", wanted)


def _required(placement: Placement) -> dict[str, str]:
    """The least versions that the bundles here ask for, by package."""
    found: dict[str, str] = {}
    for directory in placement.bundles.values():
        for package, version in requires(Path(directory)).items():
            if too_old(found.get(package, ""), version):
                found[package] = version
    return found


def _package(name: str, hint: str, wanted: dict[str, str]) -> Finding:
    try:
        version = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        try:
            version = str(getattr(importlib.import_module(name), "__version__", "version unknown"))
        except ImportError:
            why = "what runs here imports it, and would not start"
            return failure(f"package {name}", "not installed", why, hint, 3)
    if too_old(version, wanted.get(name, "")):
        why = "the bundle was built and checked with that one, and an older one may compute something else"
        seen = f"{version} is older than {wanted[name]}, which the bundle requires"
        return failure(f"package {name}", seen, why, f"{hint} --upgrade", 3)
    return well(f"package {name}", version)
