"""How many tokens of a prompt go into a step while others decode, from what the plan says steps take.

With each step of a group that decodes goes at most one chunk, behind it or in it (``engine/scheduler.py``), so its
members notice a newcomer by what a chunk takes, or adds to a step, on the slowest stage. With chunks of at most
``PATIENCE`` usual steps they wait for a token at most 1 + PATIENCE times as long as without the newcomer; and the
newcomer gets about PATIENCE of every 1 + PATIENCE parts of the time, and where its chunks go in the steps of others,
what these read anyway. On two cores the longest of some hundred waits is 1.3 to 1.8 times a usual one without any
newcomer, which is what is left of the three times that nobody shall wait. Larger chunks are nothing but a longer wait
for those who decode, since what a chunk costs grows with its tokens: half of SmolLM2-135M on a core took 10.2 ms for a
step of four rows on ONNX Runtime, and 19, 74 and 321 ms for chunks of 16, 64 and 256 tokens. Below LEAST tokens what
every step costs beside them begins to weigh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet

from ruvrun.backends import COPYING, RAGGED
from ruvrun.manifest import Expected

PATIENCE = 0.6
LEAST = 8


def prompts_beside(backends: AbstractSet[str], stages: Sequence[Expected | None]) -> tuple[tuple[int, ...], bool]:
    """How prompts go beside those who decode, where people are served: ``beside`` and ``ragged`` of a scheduler.

    A back end that cannot copy computes a prompt with other last digits where it is divided otherwise. There chunks are
    of one size in any company, or company would be seen in the answer.

    Args:
        backends: of all stages of a pipeline.
        stages: what the plan expects of each.
    """
    ragged = backends <= RAGGED
    return chunks_beside(stages, ragged=ragged) if backends <= COPYING else (), ragged


def chunks_beside(stages: Sequence[Expected | None], *, ragged: bool = False) -> tuple[int, ...]:
    """The largest chunk while groups of 1, 2, ... rows decode; nothing where the plan does not say.

    Args:
        stages: what the plan expects of each stage of a pipeline.
        ragged: whether chunks go in the steps of those who decode.
    """
    known = [stage for stage in stages if stage is not None and stage.rows and stage.chunks]
    if len(known) < len(stages):
        return ()
    costs = [dict(zip(stage.chunks, stage.chunk_ms, strict=False)) for stage in known]
    sizes = set.intersection(*map(set, costs))
    if ragged:
        costs = [_more(cost) for cost in costs]
    found = []
    for rows in range(1, max(stage.rows[-1] for stage in known) + 1):
        usual = max(stage.step_ms(rows) or 0.0 for stage in known)
        fitting = [size for size in sizes if max(cost[size] for cost in costs) <= PATIENCE * usual]
        found.append(max([LEAST, *fitting]))
    return tuple(found)


def _more(costs: Mapping[int, float]) -> dict[int, float]:
    """What chunks add to a step that goes anyway, from what they take by themselves: what a token does, where two sizes
    tell it.
    """
    least, *others = sorted(costs)
    if not others:
        return dict(costs)
    token = (costs[others[0]] - costs[least]) / (others[0] - least)
    return {size: token * size for size in costs}
