"""Sampling against a plain implementation that sorts everything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ruvrun.engine.sampling import choose, draw, nucleus, pick, weigh
from ruvrun.errors import IntegrityError
from ruvrun.frames import Sampling
from tests import strategies

GREEDY = Sampling(0.0, 1.0, 0)


def sorted_nucleus(weights: np.ndarray, top_p: float) -> list[int]:
    """The nucleus as one would write it down: sort all (of equals the lower id first), add up, stop."""
    order = sorted(range(len(weights)), key=lambda token: (-int(weights[token]), token))
    total = sum(int(weight) for weight in weights)
    kept: list[int] = []
    reached = 0
    for token in order:
        if kept and (reached >= math.ceil(top_p * total) or reached >= total):
            break
        kept.append(token)
        reached += int(weights[token])
    return sorted(kept)


def softmax(row: np.ndarray, temperature: float) -> np.ndarray:
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


TOP_P = st.sampled_from([0.0, 1e-6, 0.5, 0.9, 0.99, 1.0 - 1e-9, 1.0]) | st.floats(0.0, 1.0)


@given(rows(), st.floats(0.05, 4.0), TOP_P)
@settings(deadline=None, max_examples=120)
def test_the_nucleus_is_exactly_that_of_a_full_sort(row: np.ndarray, temperature: float, top_p: float) -> None:
    weights = weigh(row, row.max(), temperature)
    ids, kept = nucleus(weights, top_p)
    assert ids.tolist() == sorted_nucleus(weights, top_p)
    assert kept.tolist() == weights[ids].tolist()


@given(rows(), st.floats(0.05, 4.0), st.floats(0.01, 0.99))
@settings(deadline=None, max_examples=100)
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


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 0.9), (2.0, 0.5)])
def test_tokens_are_drawn_as_often_as_they_are_likely(temperature: float, top_p: float) -> None:
    row = np.array([2.0, 0.5, -1.0, 2.0, 1.0, -6.0, 0.0, 1.5], np.float32)
    draws = 16_000
    exact = softmax(row, temperature)
    kept = np.isin(np.arange(len(row)), sorted_nucleus(weigh(row, row.max(), temperature), top_p))
    exact = np.where(kept, exact, 0) / exact[kept].sum()
    logits = np.broadcast_to(row, (draws // 8, len(row)))
    found = np.zeros(len(row))
    for seed in range(8):
        tokens = pick(logits, [Sampling(temperature, top_p, seed)] * len(logits), range(len(logits)))
        found += np.bincount(tokens, minlength=len(row))
    assert (found[~kept] == 0).all()
    # Within five standard deviations each; the draws are fixed by their seeds, so this cannot fail by chance.
    assert (np.abs(found - draws * exact) <= 5 * np.sqrt(draws * exact * (1 - exact)) + 1e-9).all()


@given(st.lists(st.tuples(rows(), strategies.samplings(), st.integers(0, 2**31)), min_size=1, max_size=6))
@settings(deadline=None, max_examples=40)
def test_a_token_does_not_depend_on_company(company: list[tuple[np.ndarray, Sampling, int]]) -> None:
    width = min(len(row) for row, _, _ in company)
    logits = np.array([row[:width] for row, _, _ in company])
    together = pick(logits, [sampling for _, sampling, _ in company], [position for _, _, position in company])
    backwards = pick(logits[::-1], [s for _, s, _ in company[::-1]], [position for _, _, position in company[::-1]])
    alone = [pick(row[None, :width].copy(), [sampling], [at])[0] for row, sampling, at in company]
    assert together == alone == backwards[::-1]


def test_the_draw_is_philox_with_seed_and_position() -> None:
    # The known answer of Random123 for key 0, counter 0; numpy counts up before it draws.
    assert draw(0, 2**256 - 1) == 0x16554D9ECA36314C
    assert draw(1, 5) == draw(1, 5)
    assert len({draw(seed, position) for seed in range(-20, 20) for position in range(40)}) == 1600


def test_every_unit_of_weight_belongs_to_one_token() -> None:
    ids, weights = np.array([4, 6, 9]), np.array([1, 2, 1], np.int32)
    quarter = 2**62
    chosen = [choose(ids, weights, bits) for bits in (0, quarter - 1, quarter, 3 * quarter - 1, 3 * quarter, 2**64 - 1)]
    assert chosen == [4, 4, 6, 6, 9, 9]


@pytest.mark.parametrize(("top_p", "kept"), [(0.5, 1024), (0.5 + 2**-10, 1024 + 4), (0.5 - 2**-10, 1024 - 2)])
def test_a_border_between_two_values_is_found_exactly(top_p: float, kept: int) -> None:
    weights = np.array([2**19] * 1024 + [2**20] * 1024 + [2**19] * 1024, np.int32)
    ids, _ = nucleus(weights, top_p)
    assert ids.tolist() == sorted_nucleus(weights, top_p)
    assert len(ids) == kept


def test_greedy_takes_the_lowest_of_equals() -> None:
    logits = np.array([[1, 7, 7, 0], [-np.inf, -3, -3, -np.inf], [0, 0, 0, 0]], np.float32)
    assert pick(logits, [GREEDY] * 3, [0] * 3) == [1, 1, 0]
    assert pick(logits[:0], [], []) == []


@given(rows(), strategies.SEEDS, st.integers(0, 10**6))
@settings(deadline=None, max_examples=60)
def test_the_ends_of_both_ranges_are_greedy(row: np.ndarray, seed: int, position: int) -> None:
    for sampling in (Sampling(0.0, 0.3, seed), Sampling(1e-9, 1.0, seed)):
        assert pick(row[None], [sampling], [position]) == [int(row.argmax())]
    # Logits that differ in their last digits only may weigh the same; then the lower id counts as the better one.
    assert pick(row[None], [Sampling(1.5, 0.0, seed)], [position]) == [int(weigh(row, row.max(), 1.5).argmax())]


def test_what_is_impossible_is_never_drawn() -> None:
    row = np.full((1, 5000), -np.inf, np.float32)
    row[0, [7, 4000]] = 3.0
    drawn = {pick(row, [Sampling(1.0, 1.0, 3)], [position])[0] for position in range(50)}
    assert drawn == {7, 4000}
    extreme = np.array([[3e38, -3e38, 3e38]], np.float32)
    assert {pick(extreme, [Sampling(0.5, 1.0, 3)], [position])[0] for position in range(50)} == {0, 2}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 0.9, 1)])
def test_logits_that_are_not_numbers_are_an_error(bad: float, sampling: Sampling) -> None:
    logits = np.zeros((2, 9), np.float32)
    logits[1, 4] = bad
    with pytest.raises(IntegrityError):
        pick(logits, [sampling] * 2, [0, 0])
    with pytest.raises(IntegrityError):
        pick(np.full((1, 9), -np.inf, np.float32), [sampling], [0])
