"""A case through the compiler and the runtime: built, loaded, checked, and run by the code that serves.

The workers are those of a ring; what passes between them, and to and from the head, goes through frames. A build in
one stage is the command line's own ``build``. Cuts go one by one through the steps that a build is made of: its passes,
its list of legal cuts, its way of writing a stage. Nothing is measured longer than it takes to run once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest

from ruvcompile import compile as steps
from ruvcompile.load import load
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.options import resolve
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.cuts import boundaries
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.progress import Silent
from ruvcompile.samples import sample
from ruvcompile.whole import observe
from ruvrun import frames
from ruvrun.bundle import StageSpec, find_bundles
from ruvrun.elements import ELEMENTS, bits_of
from ruvrun.executors import load_graph
from ruvrun.manifest import Tensor, load_manifest
from ruvrun.npz import write_npz
from ruvrun.pipeline.loading import load_worker
from ruvrun.pipeline.worker import Worker
from tests.assumed import assume_costs
from tests.foreign.cases import Case, Value

MODEL, INPUTS, DIST = "model.onnx", "in.npz", "dist"


def be_quick(patch: pytest.MonkeyPatch | None = None) -> None:
    """Measure nothing and draw no report, in this process or until ``patch`` is undone: neither is of interest here."""
    patch = patch or pytest.MonkeyPatch()
    assume_costs(patch)
    patch.setattr(steps.reporting, "write", lambda *_: None)


def build(case: Case, folder: Path, nodes: int = 1) -> Path:
    """Build ``case`` as a user would, with its inputs in a file; the manifest's path."""
    onnx.save(case.model, folder / MODEL)
    with (folder / INPUTS).open("wb") as stream:
        write_npz(stream, {name: _bits(value) for name, value in case.inputs.items()})
    flags = {"model": str(folder / MODEL), "output": str(folder / DIST), "inputs": str(folder / INPUTS)}
    steps.build(resolve(flags | {"target": "host", "nodes": str(nodes), "stages": nodes}, directory=folder), Silent())
    return folder / DIST / "manifest.toml"


def run(manifest_path: Path, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """Load every stage of a build as ``serve`` does, golden check included, and run once."""
    manifest = load_manifest(manifest_path)
    bundles = find_bundles(manifest_path, manifest)
    workers = [
        load_worker(bundles[each.node], manifest, each.stage, context=0, streams=0, threads=1)
        for each in manifest.pipeline[0].stages
    ]
    return _around(workers, inputs, manifest.program.outputs)


def run_at_cuts(case: Case, folder: Path, most: int) -> Iterator[tuple[str, dict[str, Value]]]:
    """The outputs of ``case`` in two stages, at every cut that the compiler holds legal, with the cut's name.

    Of more than ``most`` cuts so many are taken, evenly spread.
    """
    program = run_passes(load(str(folder / MODEL)))
    made = sample(program.model, inputs=folder / INPUTS)
    types = observe(program.model, made.arrays)
    units = program_units(program, types)
    store = WeightStore(folder / "store")
    legal = [(number, border) for number, border in enumerate(boundaries(units), 1) if border.legal]
    for number, border in legal[:: max(1, math.ceil(len(legal) / most))]:
        stages: list[tuple[Path, StageSpec]] = []
        for index, piece in enumerate(pieces(program, units, (number,))):
            directory = folder / f"cut-{number}-{index}"
            spec = write_stage(program, piece, directory, store, backend="onnxruntime", target="host", types=types)
            stages.append((directory, spec))
        workers = [Worker(load_graph(directory, spec, threads=1), spec) for directory, spec in stages]
        known = {port.name: port for _, spec in stages for port in (*spec.inputs, *spec.outputs)}
        outputs = [known[name] for name in case.wanted]
        yield f"{number} ({', '.join(border.tensors)})", _around(workers, case.inputs, outputs)


def _around(workers: Sequence[Worker], inputs: Mapping[str, Value], outputs: Sequence[Tensor]) -> dict[str, Value]:
    """One call around the ring, every hop as bytes."""
    message: frames.Message = frames.Run(1, 0, 0)
    values = {name: _bits(value) for name, value in inputs.items()}
    for worker in workers:
        message, values = _sent(message, values)
        result = worker.handle(message, values)
        assert result is not None
        message, values = result
    message, values = _sent(message, values)
    assert isinstance(message, frames.Run)
    if message.refused:
        raise ValueError(f"a stage refused: {message.refused}")
    return {port.name: _natural(values[port.name], port.dtype) for port in outputs}


def _sent(message: frames.Message, values: Mapping[str, Value]) -> tuple[frames.Message, dict[str, Value]]:
    return frames.decode([bytes(part) for part in frames.encode(message, values)])


def _bits(value: Value) -> Value:
    if isinstance(value, list):
        return [_bits(each) for each in value]
    return bits_of(value, value.dtype.name) if isinstance(value, np.ndarray) else value


def _natural(value: Value, dtype: str) -> Value:
    """The array of the ml_dtypes package that a runtime's array stands for."""
    element = ELEMENTS.get(dtype)
    if element is None:
        return value
    real = np.dtype(getattr(ml_dtypes, dtype))
    return value.view(real) if element.bits >= 8 or element.exponent else value.astype(real)
