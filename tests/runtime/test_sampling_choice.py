"""top_k, top_p and min_p against a plain implementation that sorts everything."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun.engine.sampling.choice import keep, largest, nucleus, places
from ruvrun.engine.sampling.weights import weigh
from ruvrun.frames import Sampling
from tests.runtime.rows import rows, softmax, sorted_choice

SHARE = st.sampled_from([0.0, 1e-6, 0.5, 0.9, 0.99, 1.0 - 1e-9, 1.0]) | st.floats(0.0, 1.0)
COUNT = st.sampled_from([0, 1, 2, 20, 40, 1000, 1024, 1025, 100_000]) | st.integers(0, 13_000)


def kept_of(weights: np.ndarray, sampling: Sampling) -> tuple[list[int], list[int]]:
    ids, kept = keep(weights, sampling)
    return list(range(weights.size)) if ids is None else ids.tolist(), kept.tolist()


@given(rows(), st.floats(0.05, 4.0), SHARE)
@settings(deadline=None, max_examples=100)
def test_the_nucleus_is_exactly_that_of_a_full_sort(row: np.ndarray, temperature: float, top_p: float) -> None:
    weights = weigh(row, row.max(), temperature)
    ids, kept = nucleus(weights, top_p)
    assert ids.tolist() == sorted_choice(weights.tolist(), Sampling(temperature, top_p, 0))
    assert kept.tolist() == weights[ids].tolist()


@given(rows(), st.floats(0.05, 4.0), SHARE, COUNT, SHARE)
@settings(deadline=None, max_examples=100)
def test_the_filters_together_are_exactly_those_of_a_full_sort(
    row: np.ndarray, temperature: float, top_p: float, top_k: int, min_p: float
) -> None:
    weights = weigh(row, row.max(), temperature)
    sampling = Sampling(temperature, top_p, 0, top_k, min_p)
    ids, kept = kept_of(weights, sampling)
    assert kept == weights[ids].tolist()
    wanted = sorted_choice(weights.tolist(), sampling)
    if top_p == 1 and not min_p:  # what weighs nothing is not drawn, in or out
        ids, wanted = ([one for one in found if weights[one]] for found in (ids, wanted))
    assert ids == wanted


@given(st.integers(0, 9001), st.sampled_from([0.0, 0.001, 0.05, 0.5, 1.0]), st.integers(0, 9))
@settings(deadline=None, max_examples=60)
def test_places_are_those_that_numpy_finds(size: int, share: float, seed: int) -> None:
    mask = np.random.default_rng(seed).random(size) < share
    assert places(mask).tolist() == mask.nonzero()[0].tolist()


@given(rows(), COUNT)
@settings(deadline=None, max_examples=100)
def test_the_largest_are_those_of_a_full_sort(row: np.ndarray, count: int) -> None:
    assert largest(row, count).tolist() == np.argsort(-row, kind="stable")[:count].tolist()


@given(rows(), st.floats(0.05, 4.0), st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=80)
def test_integer_weights_are_as_good_as_double_precision(row: np.ndarray, temperature: float, top_p: float) -> None:
    """The nucleus lies between those of a softmax in double precision at a slightly smaller and larger top_p."""
    ids, _ = nucleus(weigh(row, row.max(), temperature), top_p)
    exact = softmax(row, temperature)
    order = np.argsort(-exact, kind="stable")
    reached = np.cumsum(exact[order])
    fewest = int(np.searchsorted(reached, top_p - 1e-4)) + 1
    most = int(np.searchsorted(reached, top_p + 1e-4)) + 1
    assert fewest <= len(ids) <= most
    # The least likely token kept is as likely as any left out, but for the rounding of logits to float32.
    left_out = np.setdiff1d(order, ids)
    if len(left_out):
        assert exact[ids].min() >= exact[left_out].max() * (1 - 1e-4)


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1024), (0.5 + 2**-10, 1024 + 4), (0.5 - 2**-10, 1024 - 2)])
def test_a_border_between_two_values_is_found_exactly(top_p: float, kept: int) -> None:
    weights = np.array([2**19] * 1024 + [2**20] * 1024 + [2**19] * 1024, np.int32)
    ids, _ = nucleus(weights, top_p)
    assert ids.tolist() == sorted_choice(weights.tolist(), Sampling(1.0, top_p, 0))
    assert len(ids) == kept


@pytest.mark.parametrize("count", [5, 40, 200])
def test_ties_at_the_border_of_many_candidates_go_to_the_lower_ids(count: int) -> None:
    row = np.zeros(40_000, np.float32)
    row[[39_999, 17]] = 1.0
    assert largest(row, count).tolist() == [17, 39_999, *[one for one in range(count) if one != 17][: count - 2]]
