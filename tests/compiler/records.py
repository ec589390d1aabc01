"""Stages with the record of their build, and whether others are taken for them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from ruvcompile.golden import add_golden
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.parts import Parts, Stage
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.program import Program
from ruvcompile.rounding import unrounded
from ruvcompile.targets import load_target
from ruvrun.errors import IntegrityError
from ruvrun.executors import load_decoder
from ruvrun.npz import read_npz
from ruvrun.pipeline.selfcheck import check_golden


def written(program: Program, folder: Path, backend: str, *cuts: int, target: str = "x86-64") -> Parts:
    """The stages of ``program`` for a target, without a golden check."""
    store, units = WeightStore(folder / "store"), program_units(program)
    chosen = pieces(program, units, cuts)
    stages = [
        (folder / str(number), write_stage(program, piece, folder / str(number), store, backend=backend, target=target))
        for number, piece in enumerate(chosen)
    ]
    return Parts(program, units, chosen, stages, store, folder)


def recorded(program: Program, folder: Path, backend: str, *cuts: int, target: str = "x86-64") -> list[Stage]:
    """The stages of ``program`` for a target, with it."""
    parts = written(program, folder, backend, *cuts, target=target)
    specs = add_golden(parts, {}, [load_target(target)] * len(parts.stages))
    return [(path, spec) for (path, _), spec in zip(parts.stages, specs, strict=True)]


def checked(stage: Stage) -> float:
    """How far the outputs of a stage are from its record; an error where that is beyond the bound."""
    directory, spec = stage
    return check_golden(directory, spec, load_decoder(directory, spec, context=64, slots=1, threads=1))


def unrounding(stage: Stage) -> float:
    """The same, where nothing is rounded."""
    (found,) = [checked(plain) for plain in unrounded([stage])]
    return found


def share(stage: Stage) -> float:
    """What the target alone would allow of its outputs."""
    directory, spec = stage
    stored = read_npz(directory / "golden.npz", ())
    largest = max(float(np.abs(stored[f"out.{port.name}"]).max()) for port in spec.outputs)
    return load_target(spec.target).golden_bound * largest


def passes(right: Stage, other: Stage) -> bool:
    """Whether a stage is taken for the ``right`` one, whose record it is held against."""
    directory, spec = other
    shutil.copyfile(right[0] / "golden.npz", directory / "golden.npz")
    try:
        checked((directory, msgspec.structs.replace(spec, golden=right[1].golden)))
    except IntegrityError:
        return False
    return True


@contextmanager
def turned(program: Program, name: str) -> Iterator[None]:
    """While this lasts, the rows of a matrix are in another order."""
    weight = program.model.graph.initializers[name]
    right = weight.const_value
    assert right is not None
    weight.const_value = ir.tensor(np.roll(right.numpy(), 1, axis=0), dtype=right.dtype, name=name)
    try:
        yield
    finally:
        weight.const_value = right
