"""Plans of synthetic fleets and costs, made without measuring and without files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ruvcompile.fleet import Fleet, FleetNode, Link
from ruvcompile.options import Options
from ruvcompile.passes.infer import Type
from ruvcompile.passes.pieces import label, program_units, unit_keys
from ruvcompile.plan import Facts, Plan, make_plan, members
from ruvcompile.plan.rules import rules_of
from ruvcompile.program import Program
from ruvcompile.targets import fleet_targets
from ruvrun.costs import CostTable, LinkCost, Overhead, Point, Provenance, UnitCost
from ruvrun.manifest import RUNTIME_BYTES, SERVING_BYTES

ROOM = 4 << 30

LAYERS = 3
PER_LAYER = 2 * 2 * 16 * 4
"""Key/value bytes of a layer per token."""


def node(name: str, target: str = "pi5", **more: Any) -> FleetNode:
    """A machine of its own, with room for everything, one thread unless ``more`` says otherwise."""
    told = {"address": f"{name}.local", "memory": ROOM, "reserve": 1, "threads": 1} | more
    return FleetNode(name, target, **told)


def fleet(*nodes: FleetNode, head: str | None = None, link: Link | None = None, **more: Any) -> Fleet:
    """A fleet of machines; the first is the head where none is named."""
    return Fleet(nodes, head or nodes[0].name, default_link=link or Link(1e9, 0.1e-3), **more)


def table(
    program: Program,
    ms: Mapping[str, float],
    *,
    labels: Mapping[str, float] | None = None,
    per_row: float = 1.0,
    beside: Sequence[int] = (1,),
    overhead: Mapping[str, float] | None = None,
    links: Sequence[LinkCost] = (),
    resident: int = 0,
    backend: str = "onnxruntime",
) -> CostTable:
    """Rows of every unit on every target of ``ms``: so many ms a row, some labels a multiple of that.

    Args:
        per_row: what each further row costs, as a share of the first; 1 makes rows without a curve.
        beside: companies that are measured; in each further one everything takes a tenth longer.
        overhead: fields of the overhead rows.
        backend: of all rows.
        resident: bytes in memory of each byte of weights; 0: not measured.
    """
    units = program_units(program)
    distinct = dict(zip(unit_keys(program, units), units, strict=True))
    rows, overheads = [], []
    for target, base in ms.items():
        for company in beside:
            slower = 1 + 0.1 * (company - 1)
            for key, unit in distinct.items():
                one = base * slower * (labels or {}).get(label(unit, decoder=True), 1.0)
                curve = [] if per_row == 1 else [Point(ms=one * (1 + per_row * (k - 1)), rows=k) for k in (1, 2, 4, 8)]
                what = {"target": target, "backend": backend, "threads": 1, "beside": company, "source": 0}
                sizes = {"weight_bytes": 1000, "resident_bytes": 1000 * resident}
                rows.append(
                    UnitCost(
                        key=key,
                        label=label(unit, decoder=True),
                        ms=one,
                        ms_per_token=one / 10,
                        curve=curve,
                        **what,
                        **sizes,
                    )
                )
            overheads.append(
                Overhead(
                    kind="decoder",
                    target=target,
                    backend=backend,
                    threads=1,
                    beside=company,
                    source=0,
                    **(overhead or {}),
                )
            )
    here = Provenance(machine="none", cpu="none", software="made up", date="2026-01-01")
    return CostTable(provenance=[here], unit=rows, overhead=overheads if overhead else [], link=list(links))


def facts_of(
    program: Program,
    machines: Fleet,
    costs: CostTable,
    *,
    cores: int = 2,
    types: Mapping[str, Type] | None = None,
    **asked: Any,
) -> Facts:
    """What a plan is made from; ``types`` are those of a graph's values."""
    options = Options(Path("model"), machines, **asked)
    units = program_units(program, types)
    rules = rules_of(machines, program, units)
    chosen = members(options, fleet_targets(options), range(cores), rules.nodes)
    return Facts(
        program,
        units,
        unit_keys(program, units, types),
        types or {},
        chosen,
        costs,
        options,
        cores,
        barred=rules.barred,
        held=rules.held,
        rejected=rules.rejected,
    )


def plan_of(program: Program, machines: Fleet, costs: CostTable, **asked: Any) -> Plan:
    """A plan."""
    return make_plan(facts_of(program, machines, costs, **asked))


def shape_of(plan: Plan) -> tuple[int, int]:
    """Replicas and stages."""
    shape = plan.figures["shape"]
    return shape["replicas"], shape["stages"]


def names(plan: Plan) -> list[list[str]]:
    """Which node holds which stage, pipeline by pipeline."""
    return [[member.name for member in pipeline] for pipeline in plan.pipelines]


def small(name: str, layers: float, streams: int, **more: object) -> object:
    """A node with room for the keys and values of so many layers, for so many sequences of 256 tokens."""
    return node(
        name, memory=RUNTIME_BYTES + SERVING_BYTES + (4 << 20) + int(layers * PER_LAYER * 256 * streams), **more
    )
