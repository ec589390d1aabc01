"""Decoders as exporters wrote them, kept in ``tests/data``: as programs, in stages, and as copies to change."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx

from ruvcompile.load import load
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvrun.bundle import StageSpec

EXPORTS = Path(__file__).parent.parent / "data" / "onnx_decoders"
PROMPTS = ([5], [7, 30], list(range(4, 20)), [(37 * n) % 95 + 3 for n in range(45)])


def program_of(path: Path, quant: str = "none") -> Program:
    return quantise(run_passes(load(str(path))), quant)


def stages(program: Program, cuts: tuple[int, ...], directory: Path) -> list[tuple[Path, StageSpec]]:
    made = []
    store = WeightStore(directory / "store")
    for number, piece in enumerate(pieces(program, program_units(program), cuts)):
        place = directory / f"{'-'.join(map(str, cuts))}.{number}"
        made.append((place, write_stage(program, piece, place, store, backend="onnxruntime", target="host")))
    return made


def copied(name: str, tmp_path: Path) -> tuple[Path, onnx.ModelProto]:
    directory = tmp_path / name
    shutil.copytree(EXPORTS / name, directory)
    return directory / "model.onnx", onnx.load(directory / "model.onnx")
