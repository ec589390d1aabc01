"""From a program, its costs and a fleet to the partition problem, and the sentence when it has no solution."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from ruvcompile.errors import FitError
from ruvcompile.options import Options
from ruvcompile.partition.chain import evaluate, solve
from ruvcompile.partition.problem import Border, Device, Partition, Problem, Shared
from ruvcompile.passes.cuts import Boundary, boundaries
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import wire
from ruvcompile.passes.units import Unit
from ruvcompile.plan.places import held_together, named_cuts
from ruvcompile.plan.shape import Member
from ruvcompile.program import Program
from ruvcompile.quantities import show_bytes
from ruvcompile.targets import usable_bytes
from ruvrun.costs import CostTable, UnitCost
from ruvrun.manifest import PACKED, RUNTIME_BYTES, Space

_NO_LIMIT = 2**62


@dataclass(frozen=True)
class Facts:
    """Everything a plan is made from: ``keys`` are the units' (``unit_keys``), ``types`` a graph's as observed."""

    program: Program
    units: tuple[Unit, ...]
    keys: tuple[str, ...]
    types: Mapping[str, Type]
    members: tuple[Member, ...]
    space: Space | None
    costs: CostTable
    options: Options

    def hops_ms(self, stages: int) -> float:
        """What the links add to one pass through ``stages`` stages: their latencies, back to the head included."""
        fleet = self.options.fleet
        ring = [fleet.head, *(member.node.name for member in self.members[:stages]), fleet.head]
        return sum(1e3 * fleet.link(sender, to).latency for sender, to in pairwise(ring) if sender != to)

    @cached_property
    def edges(self) -> tuple[Boundary, ...]:
        """All cuts of the units."""
        return boundaries(self.units)

    @cached_property
    def weight_bytes(self) -> Mapping[str, int]:
        """Bytes of each initializer."""
        values = self.program.model.graph.initializers.items()
        return {name: value.const_value.nbytes for name, value in values if value.const_value is not None}

    def rows(self, member: Member) -> list[UnitCost]:
        """The cost of every unit on a member; ``measure`` has filled the table."""
        found = self.costs.rows(self.keys, member.target.name, member.target.backend, member.threads)
        assert all(row is not None for row in found), "measure fills the table before a plan is made"
        return [row for row in found if row is not None]

    def state_bytes(self, unit: Unit) -> int:
        """Key/value bytes of a unit at the planned context and streams."""
        decoder, space = self.program.decoder, self.space
        if decoder is None or space is None:
            return 0
        kinds = {str(value.name): value.dtype for value in self.program.model.graph.inputs}
        pasts = [kinds[name] for name in unit.inputs if name.startswith(("past_key.", "past_value."))]
        wide = sum(int(kind.itemsize) for kind in pasts if kind is not None)
        return wide * decoder.kv_heads * decoder.head_size * space.context * space.streams

    def loaded_bytes(self, held: Sequence[Unit]) -> int:
        """Peak resident bytes of those weights once a session has loaded and packed them."""
        return int(self.stored_bytes(held) * PACKED)

    def shared(self) -> tuple[Shared, ...]:
        """Each reader of a weight that several units read (rotary tables), joined with the next one."""
        last: dict[str, int] = {}
        found = []
        for number, unit in enumerate(self.units):
            for name in sorted(set(unit.weights)):
                if name in last:
                    found.append(Shared(last[name], number, int(self.weight_bytes.get(name, 0) * PACKED)))
                last[name] = number
        return tuple(found)

    def stored_bytes(self, held: Sequence[Unit]) -> int:
        """Bytes of the weights that some units read, each once."""
        return sum(self.weight_bytes.get(name, 0) for name in {name for unit in held for name in unit.weights})


def problem_of(facts: Facts) -> Problem:
    """The partition problem of one stage per member."""
    sent = _value_bytes(facts)
    sizes = tuple(facts.loaded_bytes([unit]) + facts.state_bytes(unit) for unit in facts.units)
    # A value of unknown size is none that may cross: its border is not legal.
    wires = (sum(sent.get(name, 0) for name in wire(facts.program, edge)) for edge in facts.edges)
    crossing = tuple(Border(edge.legal, size) for edge, size in zip(facts.edges, wires, strict=True))
    devices = tuple(_device(facts, number) for number in range(len(facts.members)))
    return Problem(devices, sizes, crossing, RUNTIME_BYTES, facts.options.objective, facts.shared())


def solve_or_tell(facts: Facts, problem: Problem) -> Partition:
    """The forced partition, or the best one.

    Raises:
        FitError: it does not fit; says which stage is too large for which node, and what it needs.
        UsageError: ``--cut`` names what is no cut.
    """
    if facts.options.cut:
        forced = _forced(facts, problem)
        if any(need > device.memory for need, device in zip(forced.stage_bytes, problem.devices, strict=True)):
            raise _does_not_fit(facts, problem, forced)
        return forced
    partition = solve(problem)
    if partition is None:
        devices = tuple(replace(device, memory=_NO_LIMIT) for device in problem.devices)
        raise _does_not_fit(facts, problem, solve(replace(problem, devices=devices)))
    return partition


def _device(facts: Facts, number: int) -> Device:
    member, fleet = facts.members[number], facts.options.fleet
    following = facts.members[min(number + 1, len(facts.members) - 1)].node
    link = fleet.link(member.node.name, following.name)
    return Device(
        member.node.name,
        tuple(row.ms for row in facts.rows(member)),
        usable_bytes(member.node, member.target, fleet),
        send_ms_per_byte=0.0 if member.node.local and following.local else 1e3 / link.bandwidth,
    )


def _forced(facts: Facts, problem: Problem) -> Partition:
    """The partition that ``--cut`` names."""
    wires = [wire(facts.program, edge) for edge in facts.edges]
    wanted = len(problem.devices) - 1
    graph, named = facts.program.model.graph, facts.options.cut
    return evaluate(problem, named_cuts(graph, facts.units, facts.edges, wires, named, wanted))


def _does_not_fit(facts: Facts, problem: Problem, best: Partition | None) -> FitError:
    """Say which stage of ``best``, which is too large for the nodes' memory, is the furthest from fitting its node."""
    if best is None:
        return FitError(
            "no-legal-cut",
            f"this model cannot be cut into {len(problem.devices)} stages",
            context=held_together(facts.units, facts.edges),
            hint="build with fewer --nodes",
        )
    over = [need - device.memory for need, device in zip(best.stage_bytes, problem.devices, strict=True)]
    worst = over.index(max(over))
    member, bounds = facts.members[worst], [0, *best.cuts, len(facts.units)]
    held = facts.units[bounds[worst] : bounds[worst + 1]]
    installed = member.node.memory if member.node.memory is not None else member.target.installed
    detail = [f"weights {show_bytes(facts.loaded_bytes(held))}"]
    if facts.space is not None:
        state = show_bytes(sum(facts.state_bytes(unit) for unit in held))
        detail.append(f"key/value {state} ({facts.space.streams} streams x {facts.space.context} tokens)")
    detail.append(f"runtime {show_bytes(problem.runtime_bytes)}")
    need, usable = show_bytes(best.stage_bytes[worst]), show_bytes(problem.devices[worst].memory)
    unreserved = member.node.usable(installed)
    sharers = unreserved // max(1, problem.devices[worst].memory)
    shared = f", shared by {sharers} nodes" if sharers > 1 else ""
    return FitError(
        "fleet-memory-short",
        f"stage {worst} needs {need} on {member.node.name}, which has {usable} usable",
        context=[
            f"{', '.join(detail)}; "
            f"{show_bytes(installed)} installed, {show_bytes(installed - unreserved)} reserved{shared}"
        ],
        hint="add a node, lower --context or --streams, or use --quant int4",
    )


def _value_bytes(facts: Facts) -> dict[str, int]:
    """Bytes per call of each value of a graph, as observed; of a decoder per token, its batch and sequence being 1."""
    if facts.program.decoder is None:
        return {name: seen.nbytes for name, seen in facts.types.items()}
    graph = facts.program.model.graph
    found = {}
    for value in (*graph.inputs, *(value for node in graph for value in node.outputs)):
        # Every value of the canonical form is typed; of a graph that is run as it was exported, those that may cross.
        if value.name and value.shape is not None and value.dtype is not None:
            found[value.name] = math.ceil(value.dtype.itemsize * math.prod(map(_known, value.shape)))
    return found


def _known(extent: object) -> int:
    return extent if isinstance(extent, int) else 1
