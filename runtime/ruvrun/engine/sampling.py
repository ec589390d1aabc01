"""From logits to tokens: greedy, or temperature and top_p with a draw that depends on nothing else.

**The draw** is a function of the request's seed and the position of the token it picks (Philox, a counter-based
generator: seed is the key, position the counter). So a request gets the same tokens alone or in company, and
again when its steps are replayed.

**Weights are integers.** A token's weight is its probability relative to the best token's, in units of 2^-30.
Sums of integers do not depend on the order of adding, so the nucleus is exactly the set that a full sort
would find, however it is found; and a token is drawn by comparing integers. A token less than a billionth
as likely as the best one has weight 0 and is never drawn.

**The nucleus without a sort.** top_p keeps the smallest set of best tokens (of equals, the lower id first) that
weighs at least ``top_p`` of the total. All tokens of weight at most *t* weigh at most *vocab x t* together;
where that is no more than the rest that may be left out, they are out. As tails are seldom so heavy, a sharper
cut is tried first and kept if what it leaves is enough: that leaves a few hundred candidates of a typical
row. A flat row leaves many, which are split at their mean, keeping the part that holds the border, until few
enough are left to sort.

Rows are taken one by one: a row of weights fits a core's own cache, and each array operation on it takes
much longer than the call. Only the search for the best token runs over all rows at once.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ruvrun import frames
from ruvrun.errors import IntegrityError

GREEDY_BELOW = 1e-5  # a division by less overflows; as in vLLM it means greedy
SCALE = np.float32(2**30)
FEW = 1024
_WORD = 2**64


def pick(logits: npt.NDArray[np.float32], samplings: Sequence[frames.Sampling], positions: Sequence[int]) -> list[int]:
    """One token for each row.

    Args:
        logits: ``[rows, vocab]`` float32.
        samplings: per row; a temperature below 1e-5 is greedy (the lowest id among equals).
        positions: per row, the position that the new token will have in its sequence.

    Raises:
        IntegrityError: a row's largest logit is not a finite number.
    """
    tokens = []
    for row, token, sampling, position in zip(
        logits, logits.argmax(axis=1).tolist(), samplings, positions, strict=True
    ):
        peak = row[token]
        if not math.isfinite(peak):  # argmax returns a NaN if there is one
            raise IntegrityError(
                "logits-not-finite", "the last stage computed logits that are not numbers", hint="verify the build"
            )
        if sampling.temperature < GREEDY_BELOW:
            tokens.append(token)
        else:
            ids, weights = nucleus(weigh(row, peak, sampling.temperature), sampling.top_p)
            tokens.append(choose(ids, weights, draw(sampling.seed, position)))
    return tokens


def weigh(row: npt.NDArray[np.float32], peak: np.float32, temperature: float) -> npt.NDArray[np.int32]:
    """Integer weights ``[vocab]``: exp((logit - peak) / temperature) in units of 2^-30, rounded down."""
    with np.errstate(over="ignore", under="ignore"):  # far below the best, at a low temperature: weight 0
        scaled = row - peak
        scaled /= np.float32(temperature)
        np.exp(scaled, out=scaled)
        scaled *= SCALE
    return scaled.astype(np.int32)


def nucleus(weights: npt.NDArray[np.int32], top_p: float) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int32]]:
    """The smallest set of best tokens that weighs at least ``top_p`` of all; at least one token.

    Returns:
        Their ids, ascending, and their weights.
    """
    total = int(weights.sum(dtype=np.int64))
    target = min(total, max(1, math.ceil(top_p * total)))
    for sharper in (64, 1):
        ids = np.flatnonzero(weights > (total - target) // weights.size * sharper)
        kept = weights[ids]
        if int(kept.sum(dtype=np.int64)) >= target:
            break  # always with the second
    if target == total:
        return ids, kept
    border, missing = _border(kept, target)
    inside = kept > border
    inside[np.flatnonzero(kept == border)[: -(-missing // border)]] = True
    chosen = np.flatnonzero(inside)
    return ids[chosen], kept[chosen]


def draw(seed: int, position: int) -> int:
    """64 random bits for the token at ``position`` of a sequence with this ``seed``."""
    return int(np.random.Philox(key=seed % _WORD, counter=position).random_raw())


def _border(values: npt.NDArray[np.int32], target: int) -> tuple[int, int]:
    """The lowest value needed when the largest are added until ``target``, and how much those above it lack."""
    while values.size > FEW:
        mean = int(values.sum(dtype=np.int64)) // values.size
        above = values > mean
        upper = values[np.flatnonzero(above)]  # four times faster than indexing by the mask
        if not upper.size:
            break  # all are equal
        mass = int(upper.sum(dtype=np.int64))
        if mass >= target:
            values = upper
        else:
            target -= mass
            values = values[np.flatnonzero(~above)]
    ordered = np.sort(values)[::-1]
    border = int(ordered[np.searchsorted(ordered.cumsum(dtype=np.int64), target)])
    return border, target - int(ordered[ordered > border].sum(dtype=np.int64))


def choose(ids: npt.NDArray[np.int64], weights: npt.NDArray[np.int32], bits: int) -> int:
    """The token at ``bits / 2^64`` of the way through the weights, in order of ids."""
    upto = weights.cumsum(dtype=np.int64)
    point = int(upto[-1]) * bits // _WORD
    return int(ids[np.searchsorted(upto, point, side="right")])
