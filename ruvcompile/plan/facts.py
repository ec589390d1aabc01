"""Everything a plan is made from, and what of it follows from the model alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import UsageError
from ruvcompile.options import Options
from ruvcompile.passes.cuts import Boundary, boundaries
from ruvcompile.passes.infer import Type
from ruvcompile.passes.units import Unit
from ruvcompile.plan.nodes import Crowd, Member, crowds
from ruvcompile.program import Program
from ruvrun.costs import CostTable
from ruvrun.manifest import Space

LONGEST_DEFAULT = 4096
LEAST_STREAMS = 4
DEPTH = 256
"""Tokens of context of the steps that are planned for, half the asked context where that is less.

A step's time grows with what its attention looks back at, and a plan needs one number. Most conversations are far
shorter than the context they are given room for, and it is the depth at which a table is filled first.
"""


@dataclass(frozen=True)
class Facts:
    """Everything a plan is made from.

    Attributes:
        units, keys: of the program, in a topological order, and what each computes (``unit_keys``).
        types: of a graph's values, as observed.
        members: the candidates.
        cores: of this machine, for those of them that are its processes.
        barred: units that a node may not hold, by its name.
        held: nodes that alone may hold a value, by the value's name.
        rejected: nodes that the fleet's rules keep out, as in the JSON of ``plan``.
        corrections, alone: by how much the times of the tables are to be multiplied, unit by unit; empty: not at all
            (``settle``). The second where a single sequence is all there is: nobody works beside a stage then.
        hop_ms: what is to be added to the way from one process of this machine to another (``settle``).
        waits: by how much longer a round of so many sequences of a pipeline takes than its slowest part says, with
            rising numbers of them (``settle``).
        process_bytes: what is to be added to the memory of a stage's process, by its back end (``settle``).
        packed: what each byte of weights in memory is to be multiplied by, by the back end (``settle``).
        link_type: of activations on links, ``f32`` or ``f16`` (``settle.links``).
    """

    program: Program
    units: tuple[Unit, ...]
    keys: tuple[str, ...]
    types: Mapping[str, Type]
    members: tuple[Member, ...]
    costs: CostTable
    options: Options
    cores: int
    barred: Mapping[str, frozenset[int]] = field(default_factory=dict)
    held: Mapping[str, frozenset[str]] = field(default_factory=dict)
    rejected: Sequence[Mapping[str, str]] = ()
    corrections: tuple[float, ...] = ()
    alone: tuple[float, ...] = ()
    hop_ms: float = 0.0
    waits: tuple[tuple[int, float], ...] = ()
    process_bytes: Mapping[str, int] = field(default_factory=dict)
    packed: Mapping[str, float] = field(default_factory=dict)
    link_type: str = "f32"

    @property
    def decoder(self) -> bool:
        """Whether it is a decoder: its steps have rows and its stages key/value space."""
        return self.program.decoder is not None

    @property
    def kind(self) -> str:
        """As the cost table says it."""
        return "decoder" if self.decoder else "graph"

    @cached_property
    def context(self) -> int:
        """Positions per sequence that are planned for; 0 for a graph."""
        return context_for(self.program, self.options)

    @property
    def prompt(self) -> int:
        """Tokens of the prompt whose first token is told of: as asked, in so far as there is room for them."""
        return min(self.options.prompt_tokens, longest_prompt(self.context))

    @property
    def depth(self) -> int:
        """Tokens of context at which a step is priced."""
        return min(DEPTH, self.context // 2)

    def streams(self, nodes: int) -> int:
        """Sequences (or callers) at a time, of a shape that uses so many nodes."""
        return self.options.streams or max(LEAST_STREAMS, 2 * nodes)

    def space(self, streams: int) -> Space | None:
        """The key/value space of a pipeline with so many sequences."""
        return Space(context=self.context, streams=streams) if self.decoder else None

    def waiting(self, streams: int) -> float:
        """``waits`` of a pipeline with so many sequences: between two numbers that were seen in proportion."""
        if streams == 1 or not self.waits:
            return 1.0
        numbers, factors = zip(*self.waits, strict=True)
        return float(np.interp(streams, numbers, factors))

    @cached_property
    def crowds(self) -> tuple[Crowd, ...]:
        """Who shares cores with whom."""
        return crowds(self.members, self.cores)

    @cached_property
    def edges(self) -> tuple[Boundary, ...]:
        """All cuts of the units in the order in which they stand."""
        return boundaries(self.units)

    @cached_property
    def weight_bytes(self) -> Mapping[str, int]:
        """Bytes of each initializer."""
        values = self.program.model.graph.initializers.items()
        return {name: value.const_value.nbytes for name, value in values if value.const_value is not None}

    @cached_property
    def value_bytes(self) -> Mapping[str, int]:
        """Bytes per call of each value of a graph, as observed; of a decoder per token."""
        if not self.decoder:
            return {name: seen.nbytes for name, seen in self.types.items()}
        graph = self.program.model.graph
        found = {}
        for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
            # Every value of the canonical form is typed; of a graph that is run as exported, those that may cross.
            if value.name and value.shape is not None and value.dtype is not None:
                found[value.name] = math.ceil(value.dtype.itemsize * math.prod(map(_known, value.shape)))
        return found

    @cached_property
    def wire_bytes(self) -> Mapping[str, int]:
        """As ``value_bytes``, on a link: activations of a decoder may be rounded there."""
        if self.link_type == "f32":
            return self.value_bytes
        made = {str(value.name): value.dtype for node in self.program.model.graph for value in node.outputs}
        return {
            name: size // 2 if made.get(name) == ir.DataType.FLOAT else size for name, size in self.value_bytes.items()
        }

    @cached_property
    def state_bytes(self) -> tuple[int, ...]:
        """Key/value bytes of each unit per token of a sequence."""
        decoder = self.program.decoder
        if decoder is None:
            return (0,) * len(self.units)
        kinds = {str(value.name): value.dtype for value in self.program.model.graph.inputs}
        found = []
        for unit in self.units:
            pasts = [kinds[name] for name in unit.inputs if name.startswith(("past_key.", "past_value."))]
            wide = sum(int(kind.itemsize) for kind in pasts if kind is not None)
            found.append(wide * decoder.kv_heads * decoder.head_size)
        return tuple(found)

    def stored_bytes(self, items: Sequence[int]) -> int:
        """Bytes of the weights that some units read, each once."""
        names = {name for item in items for name in self.units[item].weights}
        return sum(self.weight_bytes.get(name, 0) for name in names)


def context_for(program: Program, options: Options) -> int:
    """Positions per sequence: as asked, else min(model, 4096); 0 for a graph.

    Raises:
        UsageError: more than the model has.
    """
    if program.decoder is None:
        return 0
    longest = program.decoder.context
    if options.context and options.context > longest:
        raise UsageError(
            "context-too-long",
            f"--context {options.context} is more than this model's {longest}",
            hint=f"--context {longest}",
        )
    return options.context or min(longest, LONGEST_DEFAULT)


def longest_prompt(context: int) -> int:
    """Tokens of the longest prompt that is answered in a context: it leaves room for one more."""
    return max(1, context - 1)


def _known(extent: object) -> int:
    return extent if isinstance(extent, int) else 1
