"""Costs as curves over rows, tokens and depth: exact where they were measured, straight between, and beyond."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ruvrun.costs import (
    along,
)
from tests.runtime.cost_rows import curved

GRIDS = st.dictionaries(
    st.integers(0, 2000),
    st.dictionaries(st.integers(1, 64), st.floats(0.001, 1e4), min_size=1, max_size=4),
    min_size=1,
    max_size=3,
)


@given(GRIDS)
def test_what_was_measured_is_met_exactly(grid: dict[int, dict[int, float]]) -> None:
    unit = curved(*((rows, 1, depth, ms) for depth, line in grid.items() for rows, ms in line.items()))
    for depth, line in grid.items():
        for rows, ms in line.items():
            assert unit.step_ms(rows, depth) == pytest.approx(ms, rel=1e-12)


@given(
    st.lists(st.tuples(st.integers(0, 500), st.floats(0, 1e4)), min_size=2, unique_by=lambda pair: pair[0]), st.data()
)
def test_a_line_is_straight_between_its_points(points: list[tuple[int, float]], data: st.DataObject) -> None:
    points.sort()
    number = data.draw(st.integers(0, len(points) - 2))
    (x0, y0), (x1, y1) = points[number : number + 2]
    at = data.draw(st.floats(x0, x1))
    assert min(y0, y1) - 1e-9 * (1 + y0 + y1) <= along(points, at) <= max(y0, y1) + 1e-9 * (1 + y0 + y1)
    assert along(points, x0) == y0
    assert along(points, x1) == y1


@given(
    st.lists(st.integers(1, 64), min_size=2, max_size=5, unique=True),
    st.lists(st.floats(0, 100), min_size=5, max_size=5),
    st.floats(0.5, 100),
    st.floats(0, 10),
)
def test_more_never_costs_less_where_it_was_measured_so(
    rows: list[int], steps: list[float], at: float, more: float
) -> None:
    ms, line = 0.0, []
    for count, step in zip(sorted(rows), steps, strict=False):
        ms += step
        line.append((float(count), ms))
    low, high = along(line, at), along(line, at + more)
    assert 0 <= low <= high + 1e-9 * (1 + high)


def test_between_depths_and_beyond_what_was_measured() -> None:
    unit = curved((1, 1, 0, 1.0), (3, 1, 0, 2.0), (1, 1, 200, 2.0), (3, 1, 200, 4.0))
    assert unit.step_ms(2, 100) == pytest.approx((1.5 + 3.0) / 2)
    assert unit.step_ms(2) == unit.step_ms(2, 100), "as deep as it was measured, where nobody says"
    assert unit.step_ms(5, 0) == pytest.approx(3.0)
    assert unit.step_ms(1, 400) == pytest.approx(3.0)
    falling = curved((1, 1, 0, 2.0), (2, 1, 0, 1.0))
    assert falling.step_ms(9, 0) == 0.0, "no time is below nothing"


def test_chunks_of_a_prompt() -> None:
    unit = curved((1, 32, 0, 4.0), (1, 128, 0, 10.0), (1, 32, 1000, 90.0))
    assert unit.prompt_ms(32) == 4.0
    assert unit.prompt_ms(80) == pytest.approx(7.0)
    assert unit.prompt_ms(256) == pytest.approx(18.0)
    old = msgspec.structs.replace(unit, curve=[])
    assert (old.prompt_ms(8), old.step_ms(5, 77)) == (2.0, 7.0)
