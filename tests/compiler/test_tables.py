"""Results as text."""

from __future__ import annotations

from ruvcompile.tables import plan_text, table
from tests.plans import PLAN


def test_a_plan_as_a_table() -> None:
    lines = plan_text(PLAN).splitlines()
    assert lines[0].startswith("stage  node    target  back end     graph nodes   weights")
    assert "50.0 MiB" in lines[1]
    assert "gap 4.0 %" in plan_text(PLAN)
    assert "160 tokens/s" in plan_text(PLAN)
    assert "rejected host-2: memory" in plan_text(PLAN)
    assert lines[-1] == PLAN["verdict"]


def test_a_plan_of_a_graph() -> None:
    graph = {key: value for key, value in PLAN.items() if "token" not in key and "ttft" not in key}
    text = plan_text(graph | {"predicted_items_per_s": 20.0, "predicted_latency_ms": 70.5})
    assert "20.0 items/s, one takes 70.5 ms" in text
    assert "tokens/s," not in text


def test_numbers_stand_to_the_right() -> None:
    assert table(["a", "n"], [["x", "1"], ["yy", "10"]]) == "a    n\nx    1\nyy  10"
