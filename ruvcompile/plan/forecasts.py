"""What a solved shape expects of each of its parts, as curves: for the simulation and the report."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.forecast import Curve, Forecast, PipelineForecast, StageForecast
from ruvcompile.plan.judge import Judge
from ruvcompile.plan.memory import CHUNK
from ruvcompile.plan.nodes import Member
from ruvcompile.plan.shapes import Solution
from ruvcompile.plan.tasks import Desk
from ruvcompile.plan.times import chunk_ms, hops_of, stage_times
from ruvrun.backends import at_work, shared_by
from ruvrun.manifest import Expected
from ruvrun.pipeline.chunks import prompts_beside

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ALL_STREAMS = 16
_TOKENS = (2, 16, 32, 64, 128, CHUNK, CHUNK + 1)


def forecast_of(desk: Desk, solution: Solution, source: str, expected: Sequence[Sequence[Expected]]) -> Forecast:
    """The forecast of all pipelines of a solution, with what the manifest will say of their stages."""
    facts, share = desk.facts, -(-solution.streams // solution.shape.replicas)
    most = max(at_work(_backends(members), share) for members in solution.members) if facts.decoder else 1
    rows = [each for each in _ROWS if each <= most]
    if most not in rows:
        rows.append(most)
    pipelines = tuple(_pipeline(desk, solution, number, rows, each) for number, each in enumerate(expected))
    return Forecast(
        pipelines,
        head_node=desk.room.head.name,
        head_ms=Curve(tuple((float(each), desk.head_ms(solution.scene, each)) for each in rows)),
        decoder=facts.decoder,
        streams=share,
        context=facts.context,
        chunk=CHUNK,
        cost_source=source,
    )


def rates_of(desk: Desk, solution: Solution) -> tuple[tuple[int, float], ...]:
    """Per second with 1, 2, ... in flight, up to what is planned for; of many not every number."""
    most = solution.streams
    counts = sorted({*range(1, min(most, _ALL_STREAMS) + 1), *(2**power for power in range(most.bit_length())), most})
    judge = Judge(desk)
    return tuple((count, judge.rate_of(solution, count)) for count in counts)


def _pipeline(
    desk: Desk, solution: Solution, number: int, rows: Sequence[int], expected: Sequence[Expected]
) -> PipelineForecast:
    stages, members = solution.pipelines[number], solution.members[number]
    steps = [stage_times(desk, solution, stages, each) for each in rows]
    tokens = _TOKENS if desk.facts.decoder else ()
    found = []
    for place, member in enumerate(members):
        curve = tuple((float(each), times[place]) for each, times in zip(rows, steps, strict=True))
        chunks = tuple((float(each), chunk_ms(desk, solution, stages, place, each, 0)) for each in tokens)
        found.append(StageForecast(member.name, Curve(curve), Curve(chunks or ((1.0, 0.0),))))
    hops = tuple(hops_of(desk, stages, members))
    if not desk.facts.decoder:
        return PipelineForecast(tuple(found), hops)
    share = -(-solution.streams // solution.shape.replicas)
    backends = _backends(members)
    beside, ragged = prompts_beside(backends, expected)
    return PipelineForecast(
        tuple(found), hops, shared_by(backends, desk.facts.context, share), beside=beside, ragged=ragged
    )


def _backends(members: Sequence[Member]) -> set[str]:
    return {member.target.backend for member in members}
