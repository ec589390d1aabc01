"""What the nodes of a graph cost: the graph is written as one stage, which `ruvrun profile` measures on the samples.

A second back end that cannot run all of it is measured with the parts that it can run (``able``).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from ruvcompile.errors import InputError
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure.able import able, inputs_at, piece_of
from ruvcompile.measure.profiled import profile_stage
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit
from ruvcompile.program import Piece, Program
from ruvcompile.progress import Progress
from ruvcompile.samples.written import write_inputs
from ruvcompile.targets import BACKEND_NAMES
from ruvrun.costs import CostTable, merge
from ruvrun.executors import Array

_NAMED = 4


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
        brief: as for ``profile_stage``; and of a graph that the back end cannot run whole only what it can is measured.
    """

    def measured(piece: Piece, inputs: Mapping[str, Array]) -> CostTable:
        directory = scratch / "measured"
        try:
            spec = write_stage(
                program,
                piece,
                directory,
                store,
                backend=backend,
                target=target,
                types=types,
                passing=True,
                keyed=Keyed(units, keys),
            )
            write_inputs(directory, spec, inputs)
            return profile_stage(
                directory,
                scratch / "measured.toml",
                threads=threads,
                beside=beside,
                model=program.name,
                progress=progress,
                brief=brief,
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    (whole,) = pieces(program, units, ())
    try:
        return measured(whole, samples)
    except InputError:
        if not brief:
            raise
        spans, lacking = able(program, units, backend, store=store, scratch=scratch, types=types)
        if not spans:
            raise
    names = [name for number in lacking for name in units[number].nodes]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    progress.note(f"{BACKEND_NAMES[backend]} cannot run {', '.join(names[:_NAMED])}{more}, which stay off it")
    parts = [piece_of(program, units, span) for span in spans]
    return merge([measured(part, inputs_at(program, part, samples)) for part in parts])
