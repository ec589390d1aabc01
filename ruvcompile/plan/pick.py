"""Which pipelines to make of the nodes there are: so many of each sort, none of a node used twice, worth the most.

A *sort* of pipeline is a multiset of kinds of nodes, with what one such pipeline is worth. Branch and bound: sorts in
order of worth, the most first; of each as many as there are nodes and pipelines for, then one fewer, and so on. A
branch ends when the pipelines still to be chosen, each worth as much as the best sort left, would not make up for what
the best choice so far is ahead. With few kinds, as fleets have, next to nothing is left to branch over.
"""

from __future__ import annotations

from collections.abc import Sequence

_MOST_TRIES = 200_000


def pick(
    needs: Sequence[Sequence[int]], worth: Sequence[float], counts: Sequence[int], wanted: int
) -> tuple[int, ...] | None:
    """How many of each sort.

    Args:
        needs: of each sort, how many nodes of each kind it takes.
        worth: of one pipeline of each sort.
        counts: how many nodes of each kind there are.
        wanted: how many pipelines.

    Returns:
        The numbers in the order of ``needs``; None where there are not enough nodes. The best of all choices, unless
        there were more of them to look at than anyone would wait for.
    """
    order = sorted(range(len(needs)), key=lambda number: (-worth[number], tuple(needs[number])))
    best: tuple[float, list[int]] | None = None
    tries = 0

    def branch(at: int, left: list[int], missing: int, value: float, taken: list[int]) -> None:
        nonlocal best, tries
        if missing == 0:
            if best is None or value > best[0]:
                best = (value, list(taken))
            return
        tries += 1
        if at == len(order) or tries > _MOST_TRIES:
            return
        if best is not None and value + missing * worth[order[at]] <= best[0]:
            return
        need = needs[order[at]]
        most = min([missing, *(have // one for have, one in zip(left, need, strict=True) if one)])
        for count in range(most, -1, -1):
            rest = [have - count * one for have, one in zip(left, need, strict=True)]
            taken.append(count)
            branch(at + 1, rest, missing - count, value + count * worth[order[at]], taken)
            taken.pop()

    branch(0, list(counts), wanted, 0.0, [])
    if best is None:
        return None
    found = [0] * len(needs)
    for number, count in zip(order, best[1], strict=False):
        found[number] = count
    return tuple(found)
