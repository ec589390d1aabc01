"""Cases as the planner gets them: a graph of units that are told apart, a cost table, and a fleet with its rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ruvcompile.fleet import Fleet, FleetNode, Link, Place
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.program import Program, Source
from ruvrun.costs import CostTable, Overhead, Point, Provenance, UnitCost
from ruvrun.manifest import RUNTIME_BYTES, SERVING_BYTES
from tests.plan_cases import SIZE, Case

TARGETS = ("pi5", "host", "arm64")


def program_of(case: Case) -> tuple[Program, dict[str, Type]]:
    """The graph of a case, no two of whose nodes compute the same, and the types of its values."""
    made: dict[int, list[tuple[str, int]]] = {number: [] for number in range(-1, len(case.item_bytes))}
    reads: dict[int, list[str]] = {number: [] for number in range(len(case.item_bytes) + 1)}
    types: dict[str, Type] = {}
    for number, value in enumerate(case.values):
        name = f"v{number}"
        made[value.maker].append((name, value.size))
        types[name] = Type(ir.DataType.UINT8, (value.size,))
        for reader in value.readers:
            reads[reader].append(name)
    known = {name: _tensor(name, size) for own in made.values() for name, size in own}
    weights = {f"w{item}": (SIZE * size, [item]) for item, size in enumerate(case.item_bytes)}
    weights |= {f"s{number}": (SIZE * each.size, list(each.readers)) for number, each in enumerate(case.shared)}
    held = {name: _weight(name, size) for name, (size, _) in weights.items()}
    nodes = []
    for item in range(len(case.item_bytes)):
        inputs = [known[name] for name in reads[item]]
        inputs += [held[name] for name, (_, readers) in weights.items() if item in readers]
        attribute = ir.AttrString("equation", str(item))
        outputs = [known[name] for name, _ in made[item]]
        nodes.append(ir.Node("", "Einsum", inputs, [attribute], outputs=outputs, name=f"/n{item}"))
    graph = ir.Graph(
        [known[name] for name, _ in made[-1]],
        [known[name] for name in reads[len(case.item_bytes)]],
        nodes=nodes,
        initializers=list(held.values()),
        opset_imports={"": 20},
        name="made up",
    )
    return Program("case", ir.Model(graph, ir_version=10), Source("case", "0" * 64), None), types


def _weight(name: str, size: int) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(np.zeros(size, np.uint8), name=name))


def _tensor(name: str, size: int) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(ir.DataType.UINT8), shape=ir.Shape([size]))


def costs_of(case: Case, program: Program, types: Mapping[str, Type]) -> CostTable:
    """What the machines of a case take, as a table."""
    units, kind = program_units(program, types), "decoder" if case.decoder else "graph"
    rows, overheads = [], []
    for target, machine in zip(TARGETS, case.machines, strict=False):
        what: dict[str, Any] = {"target": target, "backend": "onnxruntime", "threads": 1, "source": 0}
        for key, ms in zip(unit_keys(program, units, types), machine.item_ms, strict=True):
            curve = [Point(ms=ms * (1 + machine.per_row * (row - 1)), rows=row) for row in (1, 2, 4)]
            sizes = {"weight_bytes": SIZE, "resident_bytes": SIZE}
            rows.append(UnitCost(key=key, label=key[:8], ms=ms, curve=curve, **what, **sizes))
        own = {"stage_ms": machine.stage_ms, "byte_ms": machine.byte_ms, "head_ms": machine.head_ms}
        overheads.append(Overhead(kind=kind, **what, **own))
    here = Provenance(machine="none", cpu="none", software="made up", date="2026-01-01")
    return CostTable(provenance=[here], unit=rows, overhead=overheads)


def fleet_of(case: Case, taken: int, order: Sequence[int] | None = None) -> Fleet:
    """The machines of a case; ``taken`` is what a stage takes of their memory beside its items."""
    nodes = []
    for number in order or range(len(case.nodes)):
        what, room, _ = case.nodes[number]
        memory = 1 + RUNTIME_BYTES + SERVING_BYTES + taken + (SIZE * room if room else 1 << 40)
        name = f"m{number}"
        nodes.append(FleetNode(name, TARGETS[what], f"{name}.local", memory=memory, reserve=1, threads=1))
    pairs = {
        (f"m{one}", f"m{two}"): Link(1e3 / hop.ms_per_byte if hop.ms_per_byte else 1e300, hop.ms / 1e3)
        for (one, two), hop in case.ways.items()
    }
    places = []
    for item in sorted(case.everything):
        able = [f"m{number}" for number, (_, _, barred) in enumerate(case.nodes) if item not in barred]
        if len(able) < len(case.nodes):
            places.append(Place(f"/n{item}", tuple(able)))
    if case.keeper:
        places.append(Place("v0", tuple(f"m{number}" for number in sorted(case.keeper))))
    return Fleet(tuple(nodes), "m0", pairs=pairs, places=tuple(places))
