"""Pipelines over unlike back ends for tests: stages for either, and a fleet of two nodes that are not alike."""

from __future__ import annotations

from pathlib import Path

from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.program import Program
from tests.decoders import Stage

ONNX, OPEN = "onnxruntime", "openvino"
WAYS = ((ONNX, ONNX), (OPEN, OPEN), (ONNX, OPEN), (OPEN, ONNX))
# The embedding is on the first node, so that the plan does not choose their order.
_FLEET = """format = 1
[[node]]
name = "a"
target = "{0}"
address = "local"
[[node]]
name = "b"
target = "{1}"
address = "local"
[[place]]
match = "/embed"
on = ["a"]
"""


def four_ways(program: Program, folder: Path, kv_type: str = "f32") -> dict[int, list[Stage]]:
    """Two stages, on either back end each (``WAYS``); only OpenVINO has keys and values of another type."""
    store, made, units = WeightStore(folder / "store"), {}, program_units(program)
    for number, piece in enumerate(pieces(program, units, (len(units) // 2,))):
        for backend in (ONNX, OPEN):
            path, kv = folder / f"{backend}-{number}", kv_type if backend == OPEN else "f32"
            spec = write_stage(program, piece, path, store, backend=backend, target="host", kv_type=kv)
            made[number, backend] = (path, spec)
    return {number: [made[0, way[0]], made[1, way[1]]] for number, way in enumerate(WAYS)}


def write_fleet(folder: Path, first: str, second: str) -> Path:
    """A fleet file of two nodes of these targets, processes of this machine, in this order."""
    (folder / "fleet.toml").write_text(_FLEET.format(first, second))
    return folder / "fleet.toml"
