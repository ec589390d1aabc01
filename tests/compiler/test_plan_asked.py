"""A plan whose cuts or shape were asked for: what that costs, and what cannot be."""

from __future__ import annotations

import pytest

from ruvcompile.errors import FitError, UsageError
from tests.compiler.builds import plan
from tests.compiler.even_plans import HOPS, THREE, UNITS, cut_of, fleet

pytestmark = pytest.mark.usefixtures("two_cores")


def test_a_forced_cut_stands_beside_the_best_one(model, folder, costs) -> None:
    result = plan(model, folder, costs=(str(costs),), cut="layers.0/attn/add")
    assert cut_of(result) == [2]
    assert result["bottleneck_ms"] == 12.0
    best = result["alternatives"][-1]
    assert best["shape"] == {"replicas": 1, "stages": 2}
    assert best["tokens_per_s"] == pytest.approx(4000 / (16 + HOPS), abs=0.01)
    assert best["why"].startswith("the plan's own cut: 48.1 % more tokens/s; the limit is the way of a step, 16.20 ms")


def test_a_forced_cut_that_is_the_best_one_is_no_alternative(model, folder, costs) -> None:
    result = plan(model, folder, costs=(str(costs),), cut="layers.1/attn/add")
    assert [entry["shape"]["stages"] for entry in result["alternatives"]] == [1, 1]


def test_two_forced_cuts_make_three_stages(model, folder, costs, three_cores) -> None:
    flags = {"fleet": fleet(folder, *THREE), "costs": (str(costs),)}
    result = plan(model, folder, cut="layers.0/attn/add,layers.2/mlp/add", **flags)
    assert cut_of(result) == [2, 7]


@pytest.mark.parametrize(
    ("cut", "ref"),
    [("layers.0/attn/ad", "cut-unknown"), ("layers.0/attn/q_proj", "cut-unknown")],
)
def test_a_forced_cut_that_is_none(model, folder, costs, cut, ref) -> None:
    with pytest.raises(UsageError) as error:
        plan(model, folder, costs=(str(costs),), cut=cut)
    assert error.value.ref == ref
    assert "did you mean" in (error.value.hint or "")


def test_too_few_cuts_for_the_stages(model, folder, costs) -> None:
    flags = {"fleet": fleet(folder, "", "", ""), "costs": (str(costs),), "stages": 3}
    with pytest.raises(UsageError) as error:
        plan(model, folder, cut="layers.0/attn/add", **flags)
    assert error.value.ref == "cut-count"


@pytest.mark.parametrize("stages", [3, 100])
def test_more_stages_than_nodes(model, folder, costs, stages) -> None:
    with pytest.raises(FitError) as error:
        plan(model, folder, costs=(str(costs),), stages=stages)
    assert error.value.ref == "stages-over-nodes"
    assert error.value.exit_code == 4
    assert f"{stages} stages need {stages} nodes, the fleet has 2" in str(error.value)


@pytest.mark.parametrize(
    ("asked", "says", "hint"),
    [
        ({"stages": 1, "replicas": 3}, "1 stage x 3 replicas need 3 nodes, the fleet has 2", "lower --replicas to 2"),
        ({"stages": 2, "replicas": 2}, "2 stages x 2 replicas need 4 nodes, the fleet has 2", "lower --stages to 1"),
        ({"stages": 3}, "3 stages need 3 nodes, the fleet has 2", "lower --stages to 2"),
    ],
)
def test_a_shape_that_the_fleet_is_too_small_for_says_what_is_not(model, folder, costs, asked, says, hint) -> None:
    with pytest.raises(FitError) as error:
        plan(model, folder, costs=(str(costs),), **asked)
    assert (error.value.ref, error.value.exit_code) == ("stages-over-nodes", 4)
    assert error.value.message == says
    assert error.value.hint == f"{hint}, or add nodes"


def test_more_stages_than_places_to_cut(model, folder, costs) -> None:
    with pytest.raises(FitError) as error:
        plan(model, folder, nodes=str(UNITS + 1), stages=UNITS + 1)
    assert error.value.ref == "stages-over-units"


def test_too_long_a_context(model, folder, costs) -> None:
    with pytest.raises(UsageError) as error:
        plan(model, folder, costs=(str(costs),), context=257)
    assert error.value.ref == "context-too-long"
    assert "256" in error.value.message
