"""What a solved shape expects of each of its parts, as curves: for the figures, the simulation and the report."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.forecast import Curve, Forecast, HopForecast, PipelineForecast, StageForecast
from ruvcompile.partition import Stage, evaluate
from ruvcompile.plan.memory import CHUNK
from ruvcompile.plan.nodes import Member
from ruvcompile.plan.pace import first_token_ms
from ruvcompile.plan.shapes import Solution
from ruvcompile.plan.solve import Solver
from ruvcompile.plan.tasks import Desk, Load
from ruvrun.backends import at_work, shared_by

_ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_ALL_STREAMS = 16
_TOKENS = (2, 16, 32, 64, 128, CHUNK, CHUNK + 1)


def forecast_of(desk: Desk, solution: Solution, source: str) -> Forecast:
    """The forecast of all pipelines of a solution."""
    facts, share = desk.facts, -(-solution.streams // solution.shape.replicas)
    most = max(at_work(_backends(members), share) for members in solution.members) if facts.decoder else 1
    rows = [each for each in _ROWS if each <= most]
    if most not in rows:
        rows.append(most)
    pipelines = tuple(
        _pipeline(desk, solution, stages, members, rows)
        for stages, members in zip(solution.pipelines, solution.members, strict=True)
    )
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
    solver = Solver(desk)
    return tuple((count, solver.rate(solution, count)) for count in counts)


def time_to_first(desk: Desk, solution: Solution) -> float:
    """From a prompt of ``--prompt-tokens`` to its first token, nobody else being there."""
    stages, members = solution.pipelines[0], solution.members[0]
    chunks, position = [], 0
    sizes = chunks_of(desk.facts.options.prompt_tokens)
    for tokens in sizes:
        chunks.append([chunk_ms(desk, solution, stages, place, tokens, position) for place in range(len(stages))])
        position += tokens
    beside = [place for place, member in enumerate(members) if member.name == desk.room.head.name]
    return first_token_ms(sizes, chunks, desk.head_ms(solution.scene, 1), _hops(desk, stages, members), beside)


def chunks_of(prompt: int) -> list[int]:
    """As the engine cuts a prompt: a rest of one token joins the chunk before it."""
    sizes, left = [], prompt
    while left > CHUNK + 1:
        sizes.append(CHUNK)
        left -= CHUNK
    return [*sizes, left]


def _pipeline(
    desk: Desk, solution: Solution, stages: tuple[Stage, ...], members: Sequence[Member], rows: Sequence[int]
) -> PipelineForecast:
    steps = [stage_times(desk, solution, stages, each) for each in rows]
    tokens = _TOKENS if desk.facts.decoder else ()
    found = []
    for place, member in enumerate(members):
        curve = tuple((float(each), times[place]) for each, times in zip(rows, steps, strict=True))
        chunks = tuple((float(each), chunk_ms(desk, solution, stages, place, each, 0)) for each in tokens)
        found.append(StageForecast(member.name, Curve(curve), Curve(chunks or ((1.0, 0.0),))))
    share = -(-solution.streams // solution.shape.replicas)
    pool = shared_by(_backends(members), desk.facts.context, share) if desk.facts.decoder else None
    return PipelineForecast(tuple(found), tuple(_hops(desk, stages, members)), pool)


def _backends(members: Sequence[Member]) -> set[str]:
    return {member.target.backend for member in members}


def inner_times(
    desk: Desk, solution: Solution, stages: tuple[Stage, ...], rows: int, active: int | None = None
) -> list[float]:
    """What the units of each stage take themselves, whoever else works on its cores: the back end's part of a step."""
    task = desk.task(Load(rows, solution.streams, 0, active), solution.scene, "latency")
    return [sum(task.kinds[stage.kind].item_ms[item] for item in stage.items) for stage in stages]


def stage_times(
    desk: Desk, solution: Solution, stages: tuple[Stage, ...], rows: int, active: int | None = None
) -> list[float]:
    """Each stage's process in a step of so many rows, without the head's work on its cores (``active``: ``Load``)."""
    key = (stages, solution.scene, rows, solution.streams, active)
    if key not in desk.times:
        task = desk.task(Load(rows, solution.streams, 0, active), solution.scene, "throughput")
        desk.times[key] = list(evaluate(task, stages).stage_ms)
    return desk.times[key]


def chunk_ms(
    desk: Desk, solution: Solution, stages: tuple[Stage, ...], place: int, tokens: int, position: int
) -> float:
    """A stage's process in a step of so many tokens of a prompt, ``position`` tokens from its beginning."""
    group = desk.room.groups[stages[place].kind]
    beside, stretch = desk.company(group, solution.scene)
    times = desk.room.prices.chunk_ms(group.first, beside, tokens, position)
    overhead, sent = desk.room.prices.overhead(group.first, beside), desk.crossing(stages)
    own = overhead.stage_ms + overhead.stage_row_ms + overhead.byte_ms * tokens * (sent[place] + sent[place + 1])
    return (sum(times[item] for item in stages[place].items) + own) * stretch


def _hops(desk: Desk, stages: tuple[Stage, ...], members: Sequence[Member]) -> list[HopForecast]:
    """Head to first stage, between stages, last stage to head."""
    ring = [desk.room.head, *members, desk.room.head]
    sent = desk.crossing(stages)
    found = []
    for place, size in enumerate(sent):
        hop = desk.room.prices.hop(ring[place], ring[place + 1])
        found.append(HopForecast(hop.ms, hop.ms_per_byte, size))
    return found
