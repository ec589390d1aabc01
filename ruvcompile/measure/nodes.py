"""What the nodes of a graph cost: the graph is written as one stage, which `ruvrun profile` measures on the samples."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruvcompile.fleet import HOST
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure.profiled import profile_stage
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.samples.written import write_inputs
from ruvrun.costs import CostTable
from ruvrun.executors import Array


def measure_nodes(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    *,
    target: str,
    backend: str,
    threads: int,
    beside: int,
    store: WeightStore,
    scratch: Path,
    samples: Mapping[str, Array],
    types: Mapping[str, Type],
    progress: Progress,
    brief: bool = False,
) -> CostTable:
    """A row for every distinct key, and the overhead; units of equal key share their mean.

    Args:
        brief: as for ``profile_stage``.
    """
    (piece,) = pieces(program, units, ())
    directory = scratch / "measured"
    keyed = Keyed(units, keys)
    spec = write_stage(
        program, piece, directory, store, backend=backend, target=target, types=types, passing=True, keyed=keyed
    )
    write_inputs(directory, spec, samples)
    try:
        return profile_stage(
            directory,
            scratch / "measured.toml",
            threads=threads,
            beside=beside,
            model=program.name,
            progress=progress,
            brief=brief,
            elsewhere=target == HOST,
        )
    finally:
        shutil.rmtree(directory)
