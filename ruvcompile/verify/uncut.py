"""The uncut model: the same program and weights in one stage."""

from __future__ import annotations

from pathlib import Path

from ruvcompile.lower.draft import kv_type_of
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.parts import Parts
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.program import Program
from ruvrun.bundle import StageSpec


def uncut(program: Program, scratch: Path, *, like: StageSpec) -> Parts:
    """The program in one stage, written below ``scratch``, for the back end and target of another stage."""
    units = program_units(program)
    made = pieces(program, units, ())
    kv_type = kv_type_of(like)
    directory = scratch / f"uncut-{like.backend}-{kv_type}"
    store = WeightStore(directory / "store")
    spec = write_stage(
        program, made[0], directory / "stage", store, backend=like.backend, target=like.target, kv_type=kv_type
    )
    return Parts(program, units, made, [(directory / "stage", spec)], store, scratch)
