"""A graph as one stage on disk, with its sheet and its inputs: what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.program import Program
from ruvcompile.samples.written import write_inputs
from ruvcompile.whole import observe
from ruvrun.bundle import StageSpec
from ruvrun.profile.sheet import Sheet, load_sheet


def write_graph(program: Program, arrays: Mapping[str, Any], directory: Path) -> tuple[Path, StageSpec, Sheet]:
    """Write the stage; units are told apart by the name of their first node, which is their label."""
    types = observe(program.model, arrays)
    units = program_units(program, types)
    (piece,) = pieces(program, units, [])
    spec = write_stage(
        program,
        piece,
        directory / "stage",
        WeightStore(directory / "store"),
        backend="onnxruntime",
        target="host",
        types=types,
        keyed=Keyed(units, unit_keys(program, units, types)),
    )
    spec = write_inputs(directory / "stage", spec, arrays)
    return directory / "stage", spec, load_sheet(directory / "stage", spec)
