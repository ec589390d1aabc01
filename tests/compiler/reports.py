"""Plans, cost tables and manifests as a report is written from, for tests of what it shows."""

from __future__ import annotations

from typing import Any

import msgspec

from ruvcompile.forecast import Curve, Forecast, HopForecast, PipelineForecast, StageForecast
from ruvcompile.report.contents import Figures
from ruvrun.costs import CostTable, NodeCost, Point, Provenance, UnitCost
from ruvrun.manifest import Expected, Head, Manifest, Node, Pipeline, Placed, Plan, Program
from tests.plans import PLAN

PARTS = {"embed": 0.1, "attn": 0.4, "mlp": 0.6, "head": 2.0}
KEY = "k" * 40


def figures(layers: int = 6, stages: int = 2, replicas: int = 1, **more: Any) -> Figures:
    """A decoder's plan: its layers in equal stages, ``PLAN`` in all other things."""
    names = ["embed", *(f"layers.{number}.{part}" for number in range(layers) for part in ("attn", "mlp")), "head"]
    width = -(-len(names) // stages)
    units = [
        {"name": name, "key": name.split(".")[-1], "stage": number // width, "ops": []}
        for number, name in enumerate(names)
    ]
    placed = [
        PLAN["stages"][0]
        | {"node": f"pi-{pipeline}-{stage}", "pipeline": pipeline, "predicted_ms": 5.0 + stage, "usable_bytes": 2**28}
        for pipeline in range(replicas)
        for stage in range(stages)
    ]
    whole = PLAN | {"shape": {"replicas": replicas, "stages": stages}, "stages": placed, "units": units}
    cuts = [
        {"after": stage, "tensors": [{"name": f"cut {stage}", "dtype": "float32", "shape": ["tokens", 8], "bytes": 32}]}
        for stage in range(stages - 1)
    ]
    return msgspec.convert(whole | {"cuts": cuts} | more, Figures)


def graph_figures(units: int, stages: int = 2, ops: tuple[str, ...] = ("Conv", "Add"), **more: Any) -> Figures:
    """The plan of a graph with so many units, in equal stages."""
    width = -(-units // stages)
    placed = [
        {"name": f"/block.{number // 4}/node.{number}", "key": ops[number % len(ops)], "stage": number // width}
        | {"ops": [ops[number % len(ops)]]}
        for number in range(units)
    ]
    rates: dict[str, Any] = {"predicted_items_per_s": 150.0, "predicted_latency_ms": 12.0}
    plain = {key: value for key, value in PLAN.items() if not key.startswith("predicted_")}
    shape = {"replicas": 1, "stages": stages}
    held = [PLAN["stages"][0] | {"node": f"pi-0-{number}"} for number in range(stages)]
    return msgspec.convert(plain | rates | {"shape": shape, "stages": held, "units": placed} | more, Figures)


def costs(**ms: float) -> CostTable:
    """A table with a row of each key, ``PARTS`` if none are given."""
    source = Provenance(machine="box", cpu="fast", software="ruvrun 1", date="2026-01-02")
    rows = [
        UnitCost(
            key=key,
            label=key,
            target="host",
            backend="onnxruntime",
            threads=1,
            ms=each,
            source=0,
            spread=0.02,
            curve=[Point(ms=each), Point(ms=2 * each, rows=4)],
            node=[NodeCost(name=f"{key}/a", op="MatMul", ms=0.75 * each), NodeCost(name="b", op=key, ms=0.25 * each)],
        )
        for key, each in (ms or PARTS).items()
    ]
    return CostTable(provenance=[source], unit=rows)


def manifest(plan: Figures, expected: list[Expected] | None = None) -> Manifest:
    """The manifest of a plan, in what a report reads of it."""
    names = [stage.node for stage in plan.stages]
    placed: dict[int, list[Placed]] = {}
    for stage in plan.stages:
        held = placed.setdefault(stage.pipeline, [])
        held.append(Placed(stage=len(held), node=stage.node))
    return Manifest(
        id="ab" * 32,
        program=Program(name="model", kind="decoder" if plan.decoder else "graph", source="m", source_sha256=""),
        stage=[],
        node=[Node(name=name, public_key=KEY, target="host", threads=1) for name in names],
        pipeline=[Pipeline(stages=stages) for stages in placed.values()],
        head=Head(node=names[0]),
        plan=Plan(expected=expected or []),
    )


def forecast(plan: Figures, streams: int = 4) -> Forecast:
    """A forecast in which a step of k rows takes 1 + k ms on every stage, and messages take no time."""
    line = Curve(((1.0, 2.0), (9.0, 10.0)))
    free = HopForecast(0.0, 0.0, 4)
    pipelines: dict[int, list[StageForecast]] = {}
    for stage in plan.stages:
        pipelines.setdefault(stage.pipeline, []).append(StageForecast(stage.node, line, line))
    return Forecast(
        tuple(PipelineForecast(tuple(each), (free,) * (len(each) + 1)) for each in pipelines.values()),
        head_node="elsewhere",
        head_ms=Curve(((1.0, 0.0),)),
        decoder=plan.decoder,
        streams=streams,
        context=256,
        chunk=32,
    )
