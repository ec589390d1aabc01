"""What the units of a decoder cost: a whole decoder is written as one stage, and `ruvrun profile` measures it.

One whose weights are larger than ``SAMPLE_BYTES`` is not measured whole, but by a smaller one that has some layers of
every kind (``passes.reduced``): units of equal key are one row, so nothing is missing.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence

from ruvcompile.errors import UnreachableError, model_not_finite
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.stage import write_stage
from ruvcompile.measure.profiled import profile_stage
from ruvcompile.measure.terms import Terms
from ruvcompile.parts import weight_bytes
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.passes.reduced import reduced
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvrun.costs import CostTable

SAMPLE_BYTES = 768 << 20
"""Weights of what is run; loaded they take up to twice as much."""


def measure_decoder(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    terms: Terms,
) -> CostTable:
    """A row for every distinct key, and the overhead."""
    part, part_units, part_keys = sampled(program, units, keys)
    (piece,) = pieces(part, part_units, ())
    directory = terms.scratch / "measured"
    write_stage(
        part,
        piece,
        directory,
        terms.store,
        backend=terms.backend,
        target=terms.target,
        passing=True,
        keyed=Keyed(part_units, part_keys),
        kv_type=terms.kv_type,
    )
    try:
        return profile_stage(directory, terms, model=program.name)
    except UnreachableError as error:
        # The ring that measures is the first to run the whole model, and its last stage draws tokens from logits.
        raise model_not_finite(program.source.path) if "not numbers" in error.message else error from None
    finally:
        shutil.rmtree(directory)


def sampled(
    program: Program, units: Sequence[Unit], keys: Sequence[str]
) -> tuple[Program, Sequence[Unit], Sequence[str]]:
    """The program that is run with its units and their keys: all of it, or less where it is too large."""
    if weight_bytes(program, units) <= SAMPLE_BYTES:
        return program, units, keys
    part = reduced(program, units, keys, SAMPLE_BYTES)
    found = program_units(part)
    return part, found, unit_keys(part, found)
