"""From measured costs and a fleet to a plan: which nodes hold which stages, in how many pipelines, and what to expect.

Every node that passes the fleet's rules is a candidate (``nodes``), equal ones are one kind (``groups``). The tables
say what units cost on each (``prices``), the model what has to fit (``memory``). A shape, so many pipelines of so many
stages that each have something to do (``loads``), becomes a partition problem (``tasks``) and is solved (``solve``,
``every``, ``copies``, ``pick``); the rounds of the engine tell what it yields (``pace``, ``judge``); the best shape is
taken (``choose``). ``times``, ``figures`` and ``forecasts`` say what to expect of it, ``links`` what its links are
known from, ``verdict`` says it in a sentence, and ``misfit`` what is missing where nothing fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ruvcompile.forecast import Forecast
from ruvcompile.partition import Stage
from ruvcompile.passes.pieces import pieces
from ruvcompile.passes.units import Unit, in_stages
from ruvcompile.plan.choose import choose, forced_cuts, shapes
from ruvcompile.plan.facts import Facts, context_for
from ruvcompile.plan.figures import expected_of, figures_of, rows_of, source_of
from ruvcompile.plan.forecasts import forecast_of, rates_of
from ruvcompile.plan.groups import Room
from ruvcompile.plan.links import links_of
from ruvcompile.plan.misfit import nothing_fits
from ruvcompile.plan.nodes import Member, check_cores, check_shape, members
from ruvcompile.plan.shapes import Cuts, Solution
from ruvcompile.plan.tasks import Desk
from ruvcompile.plan.times import inner_times
from ruvcompile.program import Piece
from ruvrun.manifest import Expected, Space


@dataclass(frozen=True)
class Plan:
    """Stages on nodes, and what they promise; ``figures`` is the JSON of ``plan`` without what a build adds.

    Attributes:
        pipelines: of each pipeline, which node holds which stage; all have the same stages, in the same order.
        pieces: what each stage is of the program.
        units, keys: of the program, stage by stage, and what each computes.
        space: key/value space of one pipeline.
        rows: of a step at the planned streams.
        forecast: what to expect of every part, as curves.
        expected: the same of every stage, pipeline by pipeline, as the manifest tells it.
        inner_ms, alone_ms: of each of these, what its units take in a step of ``rows`` rows, the back end's work; and
            in one of a single row while nobody else is there.
        streams: sequences (or callers) at a time that are planned for, of all pipelines together.
        rates: tokens (or items) per second of all pipelines with so many in flight, as (in flight, per second).
        cuts: which units each stage holds, as the facts number them.
        link_type: of activations between stages, ``f32`` or ``f16``.
    """

    pipelines: tuple[tuple[Member, ...], ...]
    pieces: tuple[Piece, ...]
    units: tuple[Unit, ...]
    keys: tuple[str, ...]
    space: Space | None
    figures: Mapping[str, Any]
    rows: int
    forecast: Forecast
    expected: tuple[Expected, ...]
    inner_ms: tuple[float, ...]
    alone_ms: tuple[float, ...]
    streams: int
    rates: tuple[tuple[int, float], ...]
    cuts: Cuts
    link_type: str = "f32"

    @property
    def members(self) -> tuple[Member, ...]:
        """Every node that holds a stage, pipeline by pipeline."""
        return tuple(member for pipeline in self.pipelines for member in pipeline)


def make_plan(facts: Facts, cuts: Cuts | None = None) -> Plan:
    """Choose shape, nodes and cuts.

    Args:
        facts: what is known.
        cuts: what each stage holds, where that was chosen before; what ``--cut`` says counts more.

    Raises:
        FitError: nothing fits the nodes' memory, or a part may be nowhere.
        UsageError: a cut was forced that is none.
    """
    forced = forced_cuts(facts)
    cuts = forced or cuts
    check_shape(facts.options, facts.units, len(facts.members), len(cuts) if cuts else None, facts.rejected)
    desk = Desk(Room(facts))
    choice = choose(desk, cuts)
    if choice is None:
        raise nothing_fits(desk, cuts)
    if forced is None:  # nobody forced anything: there is no other choice to compare with
        choice = replace(choice, free=None)
    chosen = choice.chosen
    order = [item for items in chosen.cuts for item in items]
    units = in_stages(facts.units, order)
    bounds = [sum(map(len, chosen.cuts[: number + 1])) for number in range(len(chosen.cuts) - 1)]
    expected = [
        [expected_of(desk, chosen, pipeline, place) for place in range(chosen.shape.stages)]
        for pipeline in range(chosen.shape.replicas)
    ]
    return Plan(
        pipelines=chosen.members,
        pieces=pieces(facts.program, units, bounds),
        units=units,
        keys=tuple(facts.keys[item] for item in order),
        space=facts.space(-(-chosen.streams // chosen.shape.replicas)),
        figures=figures_of(desk, choice) | links_of(desk, chosen),
        rows=rows_of(desk, chosen),
        forecast=forecast_of(desk, chosen, source_of(desk), expected),
        expected=tuple(stage for pipeline in expected for stage in pipeline),
        inner_ms=tuple(ms for stages in chosen.pipelines for ms in _inner(desk, chosen, stages)),
        alone_ms=tuple(ms for stages in chosen.pipelines for ms in inner_times(desk, chosen, stages, 1, active=1)),
        streams=chosen.streams,
        rates=rates_of(desk, chosen),
        cuts=chosen.cuts,
        link_type=facts.link_type,
    )


def _inner(desk: Desk, chosen: Solution, stages: tuple[Stage, ...]) -> list[float]:
    return inner_times(desk, chosen, stages, rows_of(desk, chosen), active=1 if chosen.streams == 1 else None)


__all__ = ["Facts", "Member", "Plan", "check_cores", "check_shape", "context_for", "make_plan", "members", "shapes"]
