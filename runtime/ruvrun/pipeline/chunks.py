"""How many tokens of a prompt go into a step while others decode, from what the plan says steps take.

Between two steps of a group that decodes at most one chunk passes, so its members notice a newcomer by what a chunk
takes on the slowest stage. With chunks of at most ``PATIENCE`` usual steps they wait for a token at most 1 + PATIENCE
times as long as without the newcomer; and the newcomer, whose chunks take turns with their steps, gets about PATIENCE
of every 1 + PATIENCE parts of the time. On two cores the longest of some hundred waits is 1.3 to 1.5 times a usual one
without any newcomer: with 1.2 the longest became 3.2 times a usual one, with 0.9 it stays below three. Larger chunks
are nothing but a longer wait for those who decode, since what a chunk costs grows with its tokens: half of SmolLM2-135M
on a core took 10.2 ms for a step of four rows, and 19, 74 and 321 ms for chunks of 16, 64 and 256 tokens. Below LEAST
tokens what every step costs beside them begins to weigh.
"""

from __future__ import annotations

from collections.abc import Sequence

from ruvrun.manifest import Expected

PATIENCE = 0.9
LEAST = 8


def chunks_beside(stages: Sequence[Expected | None]) -> tuple[int, ...]:
    """The largest chunk while groups of 1, 2, ... rows decode; nothing where the plan does not say.

    Args:
        stages: what the plan expects of each stage of a pipeline.
    """
    known = [stage for stage in stages if stage is not None and stage.rows and stage.chunks]
    if len(known) < len(stages):
        return ()
    costs = [dict(zip(stage.chunks, stage.chunk_ms, strict=False)) for stage in known]
    sizes = set.intersection(*map(set, costs))
    found = []
    for rows in range(1, max(stage.rows[-1] for stage in known) + 1):
        usual = max(stage.step_ms(rows) or 0.0 for stage in known)
        fitting = [size for size in sizes if max(cost[size] for cost in costs) <= PATIENCE * usual]
        found.append(max([LEAST, *fitting]))
    return tuple(found)
