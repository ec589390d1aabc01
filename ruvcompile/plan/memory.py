"""What the process of a stage needs of its machine's memory.

* weights, as they lie in memory once the back end has packed them: as measured (``UnitCost.resident_bytes``), else
  ``PACKED`` times their bytes; of a graph as much more as its stages were seen to take (``Facts.packed``);
* key/value space at the planned context, for all sequences of the pipeline, in the type it has there. A page of it is
  taken when it is first written, so a process that has not yet seen long sequences is smaller; what a full one takes is
  what has to fit;
* activations: of a decoder, those of the largest step, a chunk of a prompt, and the logits of a step's rows with what
  sampling makes of them; of any other graph, the most that is alive at a time. A back end takes its memory in pieces
  that double, and gives none back: ``ARENA`` times as much;
* the process itself with its back end: as measured (``Overhead.runtime_bytes``), else ``runtime_bytes``; and what
  serving adds to it (``serving_bytes``, both of ``ruvrun.backends``).

All of this differs from back end to back end. The partition adds up what items need; what is alive at a time is no
sum, so every stage is given what the largest step of the whole model needs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from functools import cached_property

import onnx_ir as ir

from ruvcompile.partition.task import Shared
from ruvcompile.passes.pieces import stays
from ruvcompile.passes.scope import reads
from ruvcompile.plan.facts import Facts
from ruvcompile.plan.groups import Room
from ruvcompile.plan.nodes import Member, Scene
from ruvrun.backends import KV_TYPES, positions
from ruvrun.costs import UnitCost
from ruvrun.manifest import PACKED, KeyValue

CHUNK = 256
"""Tokens of a prompt that the engine puts into one step."""

ARENA = 2
"""Memory that is taken for what is alive. Measured with a detector at four sizes from 224 to 960 pixels: 2.0 to 2.4."""

LOGITS = 10
"""Bytes at a time for each byte of logits, those of sampling included."""


def usable(facts: Facts, member: Member, scene: Scene) -> int:
    """Bytes a stage may use on a member; processes of this machine that name no memory share it evenly."""
    node = member.node
    if node.memory is not None:
        return node.usable(node.memory)
    sharers = 1
    if node.local:
        sharers = min(scene.local, sum(other.node.local and other.node.memory is None for other in facts.members))
    return node.usable(member.target.installed) // max(1, sharers)


def installed(member: Member) -> int:
    """Bytes that the member's machine has."""
    return member.node.memory if member.node.memory is not None else member.target.installed


class Sizes:
    """What units need on one kind of machine with one back end.

    Attributes:
        shared: weights that several units read.
    """

    def __init__(self, room: Room, member: Member) -> None:
        self._facts, self._target = room.facts, member.target
        readers: dict[str, list[int]] = defaultdict(list)
        for number, unit in enumerate(room.facts.units):
            for name in unit.weights:
                readers[name].append(number)
        seen = room.facts.packed.get(member.target.backend, 1.0)
        packed = [seen * _packed(row) for row in room.prices.rows(member, member.beside)]
        self._own = [0.0] * len(room.facts.units)
        together: dict[tuple[int, ...], float] = defaultdict(float)
        for name, numbers in readers.items():
            size = room.facts.weight_bytes.get(name, 0) * max(packed[number] for number in numbers)
            if len(numbers) == 1:
                self._own[numbers[0]] += size
            else:
                together[tuple(sorted(set(numbers)))] += size
        self.shared = tuple(Shared(numbers, int(size)) for numbers, size in sorted(together.items()) if size)

    def items(self, streams: int, rows: int) -> tuple[int, ...]:
        """Bytes of each unit: its own weights, its key/value space, and its logits."""
        if not self._facts.decoder:
            return self._weights
        return tuple(
            int(own) + self.state((number,), streams) + logits_bytes(self._facts, (number,), rows)
            for number, own in enumerate(self._own)
        )

    def weights(self, items: Collection[int]) -> int:
        """Bytes of the weights of some units in memory."""
        held = set(items)
        return int(sum(self._own[item] for item in held)) + sum(
            each.size for each in self.shared if not held.isdisjoint(each.readers)
        )

    def state(self, items: Collection[int], streams: int) -> int:
        """Bytes of the key/value space of some units for so many sequences."""
        tokens = positions(self._target.backend, self._facts.context, streams)
        return int(sum(self._facts.state_bytes[item] for item in items) * tokens * self._narrower)

    @cached_property
    def _weights(self) -> tuple[int, ...]:
        return tuple(map(int, self._own))

    @cached_property
    def _narrower(self) -> float:
        """Bytes of keys and values in the machine's type for each byte that they have in the program's."""
        decoder = self._facts.program.decoder
        if decoder is None:
            return 1.0
        asked, f32 = (
            KeyValue(layers=1, heads=1, head_size=decoder.head_size, dtype=KV_TYPES[kind]).bytes_per_token
            for kind in (self._target.kv_type, "f32")
        )
        return asked / f32


def _packed(row: UnitCost) -> float:
    """Bytes of a unit's weights in memory over those in its files."""
    return row.resident_bytes / row.weight_bytes if row.resident_bytes and row.weight_bytes else PACKED


def activation_bytes(facts: Facts, items: Collection[int] | None = None) -> int:
    """The most that is alive at a time while some units are computed (None: all), inputs and results included."""
    names = None if items is None else frozenset(name for item in items for name in facts.units[item].nodes)
    sizes = facts.value_bytes
    if facts.decoder:  # key/value space is counted by itself, and logits are made for the rows that are sampled only
        sizes = {**sizes, "logits": 0} | dict.fromkeys(stays(facts.program), 0)
    return ARENA * _alive(facts.program.model, sizes, names) * (CHUNK if facts.decoder else 1)


def logits_bytes(facts: Facts, items: Collection[int], rows: int) -> int:
    """What so many rows of logits take where they are made and sampled; nothing elsewhere."""
    if not facts.decoder or not any("logits" in facts.units[item].outputs for item in items):
        return 0
    return LOGITS * rows * facts.value_bytes.get("logits", 0)


def _alive(model: ir.Model, sizes: Mapping[str, int], names: frozenset[str] | None) -> int:
    """The most bytes of values at a time while the nodes called ``names`` run in the order of the model.

    A value of the size of one that is read for the last time takes its place, as back ends let it where they can.
    """
    nodes = [node for node in model.graph if names is None or node.name in names]
    last: dict[str, int] = {}
    made = {str(value.name) for node in nodes for value in node.outputs}
    for number, node in enumerate(nodes):
        last |= {str(value.name): number for value in reads(node)}
    kept = {str(value.name) for value in model.graph.outputs} | (last.keys() - made)
    now = most = sum(sizes.get(name, 0) for name in last.keys() - made)
    dying: dict[int, list[str]] = defaultdict(list)
    for name, number in last.items():
        if name not in kept:
            dying[number].append(name)
    for number, node in enumerate(nodes):
        freed = [sizes.get(name, 0) for name in dying[number]]
        for value in node.outputs:
            size = sizes.get(str(value.name), 0)
            if size in freed:
                freed.remove(size)
            else:
                now += size
        most = max(most, now)
        now -= sum(freed)
    return most
