"""How many groups those who decode form, from what a step of so many rows takes on each stage.

A round, in which every sequence gets one token, takes the longer of two times: what the slowest stage has to do for all
groups, one after the other, and the way of the largest group through all stages. With as many groups as stages both are
about the same, and every stage always has one. More groups are smaller ones, and whatever a step costs beside its rows
is paid for each, so as a rule they make a round longer. They make it shorter where sequences are few more than a
multiple of the stages: seventeen in eight stages are eight groups, one of which has three rows and whose way all others
wait for, or nine of at most two (with the steps of SmolLM2-135M on ONNX Runtime, were each stage the whole model, 103
instead of 118 ms). Fewer, as large as the largest must be, do where one stage is much slower than the others and has
them all in turn.
``LEAST`` is how much shorter a round must be before there are more or fewer groups than stages: less is within what
costs are known to.

One place of the window is left for chunks of prompts, so there are at most twice as many groups as stages, less one.
"""

from __future__ import annotations

from collections.abc import Sequence

LEAST = 0.05


def groups_of(steps: Sequence[Sequence[float]]) -> tuple[int, ...]:
    """How many groups 1, 2, ... sequences form.

    Args:
        steps: of each stage what steps of 1, 2, ... rows take, up to as many as there may be sequences. Where one knows
            none, nothing is said of any number of sequences.
    """
    stages = [[0.0, *own] for own in steps]
    return tuple(_groups(count, stages) for count in range(1, min(map(len, stages))))


def _groups(count: int, stages: Sequence[Sequence[float]]) -> int:
    usual = min(len(stages), count)

    def round_of(groups: int) -> float:
        rows, larger = divmod(count, groups)
        largest = rows + (larger > 0)
        busy = max(larger * own[largest] + (groups - larger) * own[rows] for own in stages)
        return max(busy, sum(own[largest] for own in stages))

    fewest = -(-count // -(-count // len(stages)))
    best = min((fewest, *range(usual, min(2 * len(stages), count + 1))), key=round_of)
    return best if round_of(best) < (1 - LEAST) * round_of(usual) else usual
