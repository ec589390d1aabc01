"""What the nodes of a graph cost: the graph is written as one stage, which `ruvrun profile` measures on the samples.

A second back end that cannot run all of it is measured with the parts that it can run (``able``).
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from ruvcompile.errors import InputError
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.measure.able import able, inputs_at, piece_of
from ruvcompile.measure.profiled import profile_stage
from ruvcompile.measure.terms import Terms
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit
from ruvcompile.program import Piece, Program
from ruvcompile.samples.written import write_inputs
from ruvrun.backends import BACK_ENDS
from ruvrun.costs import CostTable, merge
from ruvrun.executors import Array

_NAMED = 4


def measure_nodes(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    terms: Terms,
    samples: Mapping[str, Array],
    types: Mapping[str, Type],
) -> CostTable:
    """A row for every distinct key, and the overhead; units of equal key share their mean.

    Where the terms are ``brief``, of a graph that the back end cannot run whole what it can is measured.
    """

    def measured(piece: Piece, inputs: Mapping[str, Array]) -> CostTable:
        directory = terms.scratch / "measured"
        try:
            spec = write_stage(
                program,
                piece,
                directory,
                terms.store,
                backend=terms.backend,
                target=terms.target,
                types=types,
                passing=True,
                keyed=Keyed(units, keys),
            )
            write_inputs(directory, spec, inputs)
            return profile_stage(directory, terms, model=program.name)
        finally:
            shutil.rmtree(directory, ignore_errors=True)

    (whole,) = pieces(program, units, ())
    try:
        return measured(whole, samples)
    except InputError:
        if not terms.brief:
            raise
        spans, lacking = able(program, units, terms.backend, store=terms.store, scratch=terms.scratch, types=types)
        if not spans:
            raise
    names = [name for number in lacking for name in units[number].nodes]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    terms.progress.note(
        f"{BACK_ENDS[terms.backend].title} cannot run {', '.join(names[:_NAMED])}{more}, which stay off it"
    )
    parts = [piece_of(program, units, span) for span in spans]
    return merge([measured(part, inputs_at(program, part, samples)) for part in parts])
