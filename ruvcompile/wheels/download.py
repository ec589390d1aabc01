"""Get wheels for another machine from the package index, with pip.

pip is told of the machine in tags, takes nothing that has to be built, and follows no requirements: those are
``resolve``'s. It reads its own configuration, so that an index of one's own, a proxy or a folder of wheels are used
as they are everywhere.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from ruvcompile.errors import MachineError, RuvError, UnreachableError, UsageError
from ruvcompile.wheels.kind import Kind

_LOST = re.compile(r"Retrying \(Retry|Could not fetch URL|ConnectionError|NewConnectionError|ReadTimeout|ProxyError")
_LACKING = re.compile(r"No matching distribution found for (\S+)")


def download(wanted: Sequence[Requirement], kind: Kind, folder: Path) -> list[Path]:
    """The wheels of these requirements for such a machine, in ``folder``, which is a new one.

    Raises:
        UsageError: ``wheels-none``: there is none for that Python and processor.
        UnreachableError: ``wheels-unreachable``: the package index does not answer; which wheel could not be had.
        MachineError: pip is missing here, or fails.
    """
    names = [f"{each.name}{each.specifier}" for each in wanted]
    done = subprocess.run(
        [*_pip(), *_for(kind), "--dest", str(folder), *names], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise _why(done.stderr, names, kind)
    return [_wheel_of(each.name, folder) for each in wanted]


def _wheel_of(name: str, folder: Path) -> Path:
    for path in folder.glob("*.whl"):
        if package_of(path.name) == canonicalize_name(name):
            return path
    raise MachineError("wheels-pip", f"pip gave no wheel of {name}", hint="upgrade it: pip install -U pip")


def package_of(file: str) -> str:
    """The package that a wheel of this file name is of; empty where it is not a name of a wheel."""
    try:
        return parse_wheel_filename(file)[0]
    except InvalidWheelFilename:
        return ""


def _pip() -> list[str]:
    options = ["--quiet", "--disable-pip-version-check", "--no-input", "--retries", "2", "--no-deps"]
    return [sys.executable, "-m", "pip", "download", *options, "--only-binary=:all:"]


def _for(kind: Kind) -> list[str]:
    tags = [part for tag in kind.platforms for part in ("--platform", tag)]
    return ["--implementation", "cp", "--python-version", kind.python, *tags]


def _why(told: str, names: Sequence[str], kind: Kind) -> RuvError:
    """What pip's words mean."""
    lacking = _LACKING.search(told)
    what = lacking.group(1) if lacking else ", ".join(names)
    if _LOST.search(told):
        hint = "build where there is a network, or leave --wheels out; what was downloaded once is not asked for again"
        return UnreachableError(
            "wheels-unreachable", f"no wheel of {what} for {kind}: the package index does not answer", hint=hint
        )
    if lacking:
        hint = "leave that Python out of --wheels, or install on that node from its own package index"
        return UsageError("wheels-none", f"there is no wheel of {what} for {kind}", hint=hint)
    if "No module named pip" in told:
        return MachineError("wheels-pip", "there is no pip in this environment", hint="python3 -m ensurepip")
    lines = [line for line in told.splitlines() if line.strip()][-3:]
    return MachineError(
        "wheels-pip", f"pip could not download {what} for {kind}", context=lines, hint="see what it says"
    )
