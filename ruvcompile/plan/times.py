"""How long the parts of a solved shape take: in a step of so many rows, in a chunk of a prompt, until a first token."""

from __future__ import annotations

from collections.abc import Sequence

from ruvcompile.forecast import HopForecast
from ruvcompile.partition import Stage, evaluate
from ruvcompile.plan.loads import Load
from ruvcompile.plan.memory import CHUNK
from ruvcompile.plan.nodes import Member
from ruvcompile.plan.pace import first_token_ms
from ruvcompile.plan.shapes import Solution
from ruvcompile.plan.tasks import Desk


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


def hops_of(desk: Desk, stages: tuple[Stage, ...], members: Sequence[Member]) -> list[HopForecast]:
    """Head to first stage, between stages, last stage to head."""
    ring = [desk.room.head, *members, desk.room.head]
    sent = desk.crossing(stages)
    found = []
    for place, size in enumerate(sent):
        hop = desk.room.prices.hop(ring[place], ring[place + 1])
        found.append(HopForecast(hop.ms, hop.ms_per_byte, size))
    return found


def time_to_first(desk: Desk, solution: Solution) -> float:
    """From a prompt of ``--prompt-tokens`` to its first token, nobody else being there."""
    stages, members = solution.pipelines[0], solution.members[0]
    chunks, position = [], 0
    sizes = chunks_of(desk.facts.prompt)
    for tokens in sizes:
        chunks.append([chunk_ms(desk, solution, stages, place, tokens, position) for place in range(len(stages))])
        position += tokens
    beside = [place for place, member in enumerate(members) if member.name == desk.room.head.name]
    return first_token_ms(sizes, chunks, desk.head_ms(solution.scene, 1), hops_of(desk, stages, members), beside)


def chunks_of(prompt: int) -> list[int]:
    """As the engine cuts a prompt: a rest of one token joins the chunk before it."""
    sizes, left = [], prompt
    while left > CHUNK + 1:
        sizes.append(CHUNK)
        left -= CHUNK
    return [*sizes, left]
