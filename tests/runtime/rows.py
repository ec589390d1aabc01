"""Rows of logits, and what may be drawn from them as one would write it down."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from hypothesis import strategies as st

from ruvrun.engine.sampling.weights import ONE
from ruvrun.frames import Sampling


def sorted_choice(weights: Sequence[int], sampling: Sampling) -> list[int]:
    """The ids that top_k, top_p and min_p leave: sort all (of equals the lower id first), then keep from the front."""
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if sampling.top_k:
        order = order[: sampling.top_k]
    total = sum(weights[token] for token in order)
    kept: list[int] = []
    reached = 0
    for token in order:
        if kept and (reached >= math.ceil(sampling.top_p * total) or reached >= total):
            break
        kept.append(token)
        reached += weights[token]
    return sorted(token for token in kept if weights[token] >= math.ceil(sampling.min_p * ONE))


def softmax(row: np.ndarray, temperature: float) -> np.ndarray:
    """Probabilities in double precision."""
    scaled = (row.astype(np.float64) - row.max()) / temperature
    return np.asarray(np.exp(scaled) / np.exp(scaled).sum())


@st.composite
def rows(draw: st.DrawFn) -> np.ndarray:
    """Rows of logits of every shape: peaked and flat, with and without ties, few tokens and many."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    size = draw(st.sampled_from([1, 2, 7, 500, 1024, 1025, 5000, 12000]))
    row = rng.standard_normal(size) * draw(st.sampled_from([0.0, 1e-6, 0.3, 1.0, 4.0, 12.0, 60.0]))
    if draw(st.booleans()):
        row = np.round(row * 2) / 2
    row[rng.random(size) < draw(st.sampled_from([0.0, 0.5, 0.99]))] = row.max()
    return row.astype(np.float32)
