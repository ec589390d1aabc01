"""Log-probabilities of tokens, for those who ask."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ruvrun import frames
from ruvrun.engine.sampling.choice import largest


def score(row: npt.NDArray[np.float32], token: int, top: int) -> frames.Scores:
    """The log-probability of ``token``, and the ``top`` most likely tokens with theirs.

    Args:
        row: raw logits ``[vocab]``, the largest of which is finite.
        token: which was picked.
        top: how many more; of equals the lower id comes first.
    """
    peak = row.max()
    with np.errstate(under="ignore"):
        total = float(np.exp(row - peak).sum(dtype=np.float64))
    rest = float(peak) + math.log(total)
    best = tuple((int(one), float(row[one]) - rest) for one in (largest(row, top) if top else ()))
    return frames.Scores(float(row[token]) - rest, best)
