"""Whole builds for tests, in this process and without a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ruvcompile import compile as steps
from ruvcompile.measure.scale import LIKE
from ruvcompile.options import Options, resolve
from ruvcompile.progress import Progress, Silent
from ruvrun.bundle import StageSpec, verify_bundle
from ruvrun.costs import CostTable, Overhead, Rate, dump_costs
from ruvrun.manifest import Manifest, load_manifest
from tests.assumed import assume_costs

TWO_STAGES = ("--target", "host", "--nodes", "2", "--stages", "2")
"""Of a command: two processes of this machine."""


class Noting(Silent):
    """Keeps what a person would be told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def options(model: Path, output: Path, **flags: Any) -> Options:
    """Options as the command line makes them: a stage on each of two processes of this machine, or on each of the
    ``nodes``, unless ``flags`` say otherwise.
    """
    fleet: dict[str, Any] = {} if "fleet" in flags else {"target": "host", "nodes": "2"} | flags
    if not fleet.keys() & {"fleet", "stages", "replicas", "cut"} and fleet:
        nodes = str(fleet["nodes"])
        fleet["stages"] = int(nodes) if nodes.isdigit() else nodes.count(",") + 1
    return resolve({"model": str(model), "output": str(output)} | fleet | flags, directory=output.parent)


def build(
    model: Path, output: Path, *, measured: bool = False, progress: Progress | None = None, **flags: Any
) -> dict[str, Any]:
    """The JSON object of a build; ``measured``: as a user's, which takes seconds, where costs are assumed otherwise."""
    with _costs(measured):
        return steps.build(options(model, output, **flags), progress or Silent())


def plan(model: Path, folder: Path, *, measured: bool = False, **flags: Any) -> dict[str, Any]:
    """The JSON object of a plan; ``measured`` as for ``build``."""
    with _costs(measured):
        return steps.plan(options(model, folder / "dist", **flags), Silent())


@contextmanager
def _costs(measured: bool) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        if not measured:
            assume_costs(patch)
        yield


def snapshot(directory: Path) -> dict[str, bytes]:
    """Every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def check_whole(output: Path) -> tuple[Manifest, list[StageSpec]]:
    """Load a build's manifest and check every byte of its bundles."""
    manifest = load_manifest(output / "manifest.toml")
    placed = manifest.pipeline[0].stages
    return manifest, [verify_bundle(output / "bundles" / each.node, manifest, each.stage) for each in placed]


def write_costs(path: Path, table: CostTable, ms: Mapping[str, float]) -> Path:
    """A copy of ``table`` in which units of these labels cost this much a row, and all others 1 ms, whoever works
    beside them, and nothing else costs anything.
    """
    rows = [
        msgspec.structs.replace(
            row, ms=ms.get(row.label, 1.0), ms_per_token=0.1, curve=[], resident_bytes=0, beside=beside
        )
        for row in {(row.key, row.target, row.threads): row for row in table.unit}.values()
        for beside in (1, 2, 3)
    ]
    empty = [
        Overhead(kind=row.kind, target=row.target, backend=row.backend, threads=row.threads, beside=beside, source=0)
        for row in table.overhead[:1]
        for beside in (1, 2, 3)
    ]
    path.write_bytes(dump_costs(msgspec.structs.replace(table, unit=rows, overhead=empty, stage=[], link=[])))
    return path


def rates(target: str, backend: str, threads: int) -> list[Rate]:
    """Figures of a machine of every day."""
    figures = dict.fromkeys(LIKE, 20000000000.0) | {"node_overhead": 3e-7}
    return [
        Rate(name=name, value=value, unit="", target=target, backend=backend, threads=threads, source=0)
        for name, value in figures.items()
    ]
