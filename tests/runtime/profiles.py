"""Stages with their sheets, for tests of what measures them; and the processes that this starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.program import Program
from ruvrun.bundle import StageSpec


def write_sheeted(program: Program, folder: Path, cuts: Sequence[int] = ()) -> list[tuple[Path, StageSpec]]:
    """The stages of a decoder between ``cuts``, each with its sheet."""
    units = program_units(program)
    keyed, store = Keyed(units, unit_keys(program, units)), WeightStore(folder / "store")
    made = []
    for number, piece in enumerate(pieces(program, units, cuts)):
        directory = folder / f"stage-{number}"
        spec = write_stage(program, piece, directory, store, backend="onnxruntime", target="host", keyed=keyed)
        made.append((directory, spec))
    return made


def children_of(pid: int) -> set[int]:
    """The processes that a process has started, and that are still there."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int(entry.joinpath("stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found.add(int(entry.name))
    return found
