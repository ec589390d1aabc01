"""Which tokens may be drawn: top_k, top_p and min_p, exactly as a full sort would find them but without one.

All three keep the best tokens, where of equal weights the lower id counts as better: top_k the first k, top_p the
fewest that weigh at least that share of what top_k left, min_p those with at least that share of the best one's weight.

**top_k without a sort.** The row is looked at in blocks. The k-th largest of the blocks' maxima is reached by k tokens
at least, so whatever is below it is out. With more blocks than k several times over, few are left to sort.

**The nucleus (top_p) without a sort.** All tokens of weight at most *t* weigh at most *vocab x t* together; where that
is no more than the rest that may be left out, they are out. As tails are seldom so heavy, sharper cuts are tried first
and the first kept that leaves enough: a few hundred candidates of a typical row, a few thousand of one that is nearly
flat. Of 160 rows of SmolLM2 at temperature 1, a cut 16 times as sharp was enough for 83 %, 8 times for 99; as the time
goes with the candidates, trying these takes little more than half of what one step from 16 to 1 does. Their border is
near their lightest, so they are split at twice the cut, and the rest, where a flat row leaves many, at its mean,
keeping the part that holds the border, until few enough are left to sort.

Rows are taken one by one: a row of weights fits a core's own cache, and each array operation on it takes much longer
than the call.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ruvrun import frames
from ruvrun.engine.sampling.weights import ONE, Weights

Ids = npt.NDArray[np.int64]

_CUTS = (16, 8, 4, 1)
_FEW = 1024  # so many are sorted sooner than they are split
_MANY = 4096  # of so many, those that count are found sooner in eights
_BLOCKS_PER_WANTED = 4


def keep(weights: Weights, sampling: frames.Sampling) -> tuple[Ids | None, Weights]:
    """The tokens that may be drawn.

    Args:
        weights: ``[vocab]``; the largest is 2^30.
        sampling: its top_k, top_p and min_p.

    Returns:
        Their ids, ascending, and their weights; None instead of the ids where all may be drawn.
    """
    ids: Ids | None = None
    if 0 < sampling.top_k < weights.size:
        ids = np.sort(largest(weights, sampling.top_k))
        weights = weights[ids]
    if sampling.top_p < 1:
        inside, weights = nucleus(weights, sampling.top_p)
        ids = inside if ids is None else ids[inside]
    if sampling.min_p > 0:
        inside = np.flatnonzero(weights >= math.ceil(sampling.min_p * ONE))
        ids, weights = inside if ids is None else ids[inside], weights[inside]
    return ids, weights


def largest(values: npt.NDArray[Any], count: int) -> Ids:
    """The ids of the ``count`` largest values, the largest first, of equals the lower id; all if there are no more."""
    ids: Ids = np.arange(values.size) if count >= values.size else _candidates(values, count)
    found = values[ids]
    if ids.size > max(_FEW, count):
        border = np.partition(found, -count)[-count]
        above = np.flatnonzero(found > border)
        ids = ids[np.sort(np.concatenate([above, np.flatnonzero(found == border)[: count - above.size]]))]
        found = values[ids]
    return ids[np.argsort(-found, kind="stable")[:count]]


def _candidates(values: npt.NDArray[Any], count: int) -> Ids:
    """Ids, ascending, among which the ``count`` largest are, all of a value included."""
    width = values.size // (_BLOCKS_PER_WANTED * max(1, count))
    if width < 2:
        return np.arange(values.size)
    blocks = values[: values.size // width * width].reshape(-1, width).max(axis=1)
    return np.flatnonzero(values >= np.partition(blocks, -count)[-count])


def nucleus(weights: Weights, top_p: float) -> tuple[Ids, Weights]:
    """The fewest best weights that are at least ``top_p`` of all, at least one: their indices, ascending, and them."""
    total = int(np.add.reduce(weights, dtype=np.int64))
    target = min(total, max(1, math.ceil(top_p * total)))
    for sharper in _CUTS:
        cut = (total - target) // weights.size * sharper
        ids = places(weights > cut)
        kept = weights.take(ids)
        if int(np.add.reduce(kept, dtype=np.int64)) >= target:
            break  # always with the last
    if target == total:
        return ids, kept
    border, count = _border(kept, target, 2 * cut)
    chosen = (kept >= border).nonzero()[0]
    if chosen.size > count:  # several of the border's weight: the higher ids are not needed
        equal = (kept.take(chosen) == border).nonzero()[0]
        chosen = np.delete(chosen, equal[count - chosen.size :])
    return ids.take(chosen), kept.take(chosen)


def places(mask: npt.NDArray[np.bool_]) -> Ids:
    """Where ``mask`` holds, ascending.

    Where one place in twenty does, numpy takes as long for finding it as for twenty that do not: a processor cannot
    guess which comes next. As words of eight, a third of which hold something, they are found without guessing.
    """
    if mask.size < _MANY or np.count_nonzero(mask) > mask.size // 8:
        return mask.nonzero()[0]
    words = mask[: mask.size // 8 * 8].view(np.uint64)
    holding: Ids = (words != 0).nonzero()[0]
    inside: Ids = words.take(holding).view(np.bool_).nonzero()[0]
    found: Ids = (holding.take(inside >> 3) << 3) + (inside & 7)
    rest = mask[words.size * 8 :].nonzero()[0]
    return np.concatenate([found, rest + words.size * 8]) if rest.size else found


def _border(values: Weights, target: int, split: int) -> tuple[int, int]:
    """The lowest value needed when the largest are added until ``target``, and how many that takes; ``split`` is where
    many are split first.
    """
    count, before = 1, -1
    while values.size > _FEW and split != before:  # else all are equal
        above = values > split
        upper = values.take(above.nonzero()[0])  # four times faster than indexing by the mask
        mass = int(np.add.reduce(upper, dtype=np.int64))
        if mass >= target:
            values = upper
        else:
            target -= mass
            count += upper.size
            values = values.take((~above).nonzero()[0])
        before, split = split, int(np.add.reduce(values, dtype=np.int64)) // values.size
    ordered = np.sort(values)[::-1]
    at = int(ordered.cumsum(dtype=np.int64).searchsorted(target))
    return int(ordered[at]), count + at
