"""How far one next-token distribution is from another, over any number of positions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ruvrun.executors import Array

ROWS_AT_ONCE = 64


@dataclass
class Divergence:
    """What was found so far.

    Attributes:
        tokens: positions.
        same: of these, how often both put the same token first.
        sum_kl: of the Kullback-Leibler divergences (nats) of the exact from the found distribution.
        largest: difference of two logits.
    """

    tokens: int = 0
    same: int = 0
    sum_kl: float = 0.0
    largest: float = 0.0

    @property
    def kl(self) -> float:
        """In the mean of the positions."""
        return self.sum_kl / max(1, self.tokens)

    @property
    def top1(self) -> float:
        """The share of equal first choices."""
        return self.same / max(1, self.tokens)

    def add(self, exact: Array, found: Array) -> None:
        """Compare logits ``[rows, vocab]``."""
        for start in range(0, len(exact), ROWS_AT_ONCE):
            one, other = exact[start : start + ROWS_AT_ONCE], found[start : start + ROWS_AT_ONCE]
            p, q = log_softmax(one), log_softmax(other)
            self.sum_kl += float((np.exp(p) * (p - q)).sum())
            self.same += int((one.argmax(-1) == other.argmax(-1)).sum())
            # NaN stays: a maximum of Python would lose it.
            self.largest = float(np.maximum(self.largest, np.abs(one - other).max()))
        self.tokens += len(exact)


def log_softmax(logits: Array) -> Array:
    """In float64, over the last axis."""
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
