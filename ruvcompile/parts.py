"""A decoder that is run without being in memory: part by part, each lowered, loaded, run and let go of.

What is run is what the bundles hold: a part is lowered exactly as it is inside its stage, over the same weight files,
and computes the same bits (law 1 of the lowering: the same tokens wherever the cut is). A stage that is small enough is
run as it stands.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import cast

import msgspec

from ruvcompile.lower.draft import kv_type_of
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit
from ruvcompile.program import Piece, Program
from ruvrun.bundle import StageSpec
from ruvrun.elements import Value
from ruvrun.executors import Array, Span, load_decoder, load_graph
from ruvrun.executors.openvino.forms import on_cpu
from ruvrun.pipeline.halves import over_link

PART_BYTES = 384 << 20
"""Weights of a stage up to which it is run as it stands; loading takes up to twice as much."""

Stage = tuple[Path, StageSpec]


@dataclass(frozen=True)
class Parts:
    """The stages of a program, to be run part by part.

    Args:
        program: what they are made of.
        units: of the program.
        pieces: the stages, in order.
        stages: directory and spec of each.
        store: where their weights are.
        scratch: where parts may be written; nothing stays there.
    """

    program: Program
    units: Sequence[Unit]
    pieces: Sequence[Piece]
    stages: Sequence[Stage]
    store: WeightStore
    scratch: Path

    def of(self, number: int, backend: str = "") -> Iterator[Stage]:
        """The parts of a stage in order; each is there until the next one is asked for.

        ``backend``: another than its own, for which a decoder's parts are then lowered.
        """
        directory, spec = self.stages[number]
        own = backend in ("", spec.backend)
        if self.program.decoder is None or (own and spec.weight_bytes <= PART_BYTES):
            yield directory, spec
            return
        places = {name: place for place, unit in enumerate(self.units) for name in unit.nodes}
        inside = sorted({places[name] for name in self.pieces[number].nodes})
        for piece in _divided(self.program, self.units, inside[0], inside[-1] + 1):
            with tempfile.TemporaryDirectory(dir=self.scratch) as folder:
                part = write_stage(
                    self.program,
                    piece,
                    Path(folder),
                    self.store,
                    backend=backend or spec.backend,
                    target=spec.target,
                    passing=True,
                    kv_type=kv_type_of(spec) if own else "f32",
                )
                ports = {tensor.name: tensor for tensor in spec.inputs}
                inputs = [ports.get(tensor.name, tensor) for tensor in part.inputs]
                yield Path(folder), msgspec.structs.replace(part, inputs=inputs)

    def all(self) -> Iterator[Stage]:
        """The parts of all stages."""
        for number in range(len(self.stages)):
            yield from self.of(number)


def run_stage(parts: Iterable[Stage], spec: StageSpec, inputs: Mapping[str, Value]) -> dict[str, Value]:
    """The outputs of the stage ``spec``, of which these are the parts, or itself; on one thread."""
    if spec.kind == "decoder":
        known = run_parts(parts, cast(Mapping[str, Array], inputs), rows=1, threads=1)
        return {tensor.name: known[tensor.name] for tensor in spec.outputs}
    made: dict[str, Value] = {}
    for directory, part in parts:
        made = load_graph(directory, on_cpu(part), threads=1).run(inputs)
    return made


def run_parts(parts: Iterable[Stage], inputs: Mapping[str, Array], *, rows: int, threads: int) -> dict[str, Array]:
    """Run the parts one after the other on some tokens of one sequence, from its beginning.

    Args:
        parts: of one stage, or of all.
        inputs: what the first needs, ``[tokens, ...]``.
        rows: how many of the last tokens the logits are for.
        threads: of each.

    Returns:
        All that was made and given; arrays are the caller's own.

    Raises:
        IntegrityError: ``link-overflow``, where links have a type that cannot hold what crosses.
    """
    known = dict(inputs)
    for directory, spec in parts:
        given = {tensor.name: over_link(tensor, known[tensor.name]) for tensor in spec.inputs}
        count = len(next(iter(given.values())))
        executor = load_decoder(directory, on_cpu(spec), context=count, slots=1, threads=threads)
        outputs = executor.step([Span(0, 0, count, min(rows, count))], given)
        known |= {name: array.copy() for name, array in outputs.items()}
        del executor, outputs
    return known


def weight_bytes(program: Program, held: Iterable[Unit]) -> int:
    """Bytes of the weights that some units read, each once."""
    values = program.model.graph.initializers
    names = {name for unit in held for name in unit.weights}
    return sum(tensor.nbytes for name in names if (tensor := values[name].const_value) is not None)


def _divided(program: Program, units: Sequence[Unit], start: int, stop: int) -> tuple[Piece, ...]:
    """The units from ``start`` to ``stop`` in pieces of at most ``PART_BYTES``, or of one unit that is larger."""
    cuts, first = [start], start
    for number in range(start + 1, stop):
        if weight_bytes(program, units[first : number + 1]) > PART_BYTES:
            cuts.append(number)
            first = number
    cuts.append(stop)
    borders = [cut for cut in cuts if 0 < cut < len(units)]
    made = pieces(program, units, borders)
    at = list(pairwise([0, *borders, len(units)]))
    return tuple(piece for piece, (begin, end) in zip(made, at, strict=True) if start <= begin and end <= stop)
