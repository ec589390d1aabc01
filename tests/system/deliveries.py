"""Deliveries of builds to machines of namespaces, and what the machines run afterwards."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from ruvrun.manifest import load_manifest
from tests.system.hosts import NAMES, PYTHON, Fleet, able

WORDS = ("--", "--python", PYTHON)
MACHINES = pytest.mark.skipif(
    not able() and "CI" not in os.environ,
    reason="machines of namespaces take root, sshd and rsync; tests/system/delivery.sh installs what is missing",
)


@dataclass(frozen=True)
class Pair:
    """Copies of the build that runs on all machines, and of the next one."""

    old: Path
    new: Path


def deliver(fleet: Fleet, dist: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    more = WORDS if not words or words[0] in ("stage", "--wait", "--dry-run") else ()
    return fleet.run(dist / "deliver" / "deliver.sh", *words, *more, **environment)


def table(told: str) -> dict[str, list[str]]:
    """Rows by node, as words."""
    return {words[0]: words[1:] for line in told.splitlines() if (words := line.split()) and words[0] in NAMES}


def runs(fleet: Fleet) -> dict[str, str]:
    """The build that each machine runs, as its links have it."""
    links = {
        name: machine.run("readlink /opt/ruvrun/*/current || echo none") for name, machine in fleet.machines.items()
    }
    return {name: link.strip().rpartition("/")[2].partition(".")[0] for name, link in links.items()}


def running(fleet: Fleet) -> set[str]:
    """The builds that run somewhere."""
    return set(runs(fleet).values())


def short(dist: Path) -> str:
    return load_manifest(dist / "manifest.toml").id[:12]


def weights(dist: Path, name: str) -> set[str]:
    """The files of weights in a bundle; equal ones have one name in all builds."""
    return {path.name for path in (dist / f"bundles/{name}/weights").iterdir()}


def bytes_of(human: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([KMG]?)i?B", human).groups()  # type: ignore[union-attr]  # else it fails
    return float(number) * 1024 ** " KMG".index(unit or " ")
