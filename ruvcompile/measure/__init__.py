"""Fill a cost table by running the program with the executor that will run it.

``measure`` returns the rows a plan needs. Rows that the given tables already hold are taken from there, even when
others are missing and the program is run for those; when none is missing nothing is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from ruvcompile.measure.decoder import measure_decoder
from ruvcompile.measure.nodes import measure_nodes
from ruvcompile.measure.terms import Terms
from ruvcompile.passes.infer import Type
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvrun.costs import CostTable, merge
from ruvrun.executors import Array


def measure(
    program: Program,
    units: Sequence[Unit],
    keys: Sequence[str],
    known: CostTable,
    terms: Terms,
    samples: Mapping[str, Array],
    types: Mapping[str, Type],
    *,
    backend: str,
    beyond: CostTable | None = None,
) -> CostTable:
    """The cost rows of all ``units`` on this machine, one per distinct key, and what a step costs beside them.

    Args:
        program: quantised; what will run.
        units: what it may be cut between.
        keys: what each computes (``unit_keys``); units of equal key are one row.
        known: rows that need not be measured again.
        terms: on which they are measured, but for the back end.
        samples, types: inputs to run a graph with, and its types as observed; not used for decoders.
        backend: which of the machine's.
        beyond: what was measured with the machine's first back end, where this is another. What a process does beside
            the back end's work is then taken from there, but for the bytes that it takes.
    """
    terms = replace(terms, backend=backend, brief=beyond is not None)
    filed = terms.target, backend, terms.threads, terms.beside
    kept = held(program, keys, known, *filed)
    if kept is not None:
        return kept
    wanted = dict.fromkeys(keys)
    found = [row for row in known.rows(wanted, *filed) if row is not None]
    if program.decoder is not None:
        made = measure_decoder(program, units, keys, terms)
    else:
        made = measure_nodes(program, units, keys, terms, samples, types)
    if beyond is not None:
        made = _with_overheads(made, beyond)
    return merge([made, CostTable(provenance=known.provenance, unit=found)])


def _with_overheads(made: CostTable, beyond: CostTable) -> CostTable:
    """A table that was measured briefly, its overheads those of another back end with its own bytes of a process."""
    bare = {(row.kind, row.target, row.threads): row for row in made.overhead}
    rows = [
        msgspec.structs.replace(row, backend=own.backend, runtime_bytes=own.runtime_bytes, source=own.source)
        for row in beyond.overhead
        if (own := bare.get((row.kind, row.target, row.threads))) is not None and row.beside == own.beside
    ]
    return msgspec.structs.replace(made, overhead=rows)


def held(
    program: Program,
    keys: Sequence[str],
    known: CostTable,
    target: str,
    backend: str,
    threads: int,
    beside: int | None,
) -> CostTable | None:
    """The rows of ``known`` that a plan needs of one kind of machine; None where some are missing."""
    wanted = dict.fromkeys(keys)
    rows = [row for row in known.rows(wanted, target, backend, threads, beside) if row is not None]
    kind = "decoder" if program.decoder is not None else "graph"
    overhead = known.overhead_of(kind, target, backend, threads, beside)
    if len(rows) < len(wanted) or (overhead is None and any(row.curve for row in rows)):
        return None
    return merge([CostTable(provenance=known.provenance, unit=rows, overhead=[overhead] if overhead else [])])
