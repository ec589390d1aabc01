"""Results as text."""

from __future__ import annotations

from ruvcompile.tables import plan_text, table, targets_text, verify_text
from ruvcompile.targets import load_target
from tests.plans import PLAN


def test_a_plan_as_a_table() -> None:
    lines = plan_text(PLAN).splitlines()
    assert lines[0].startswith("stage  node    target  back end     graph nodes   weights")
    assert "50.0 MiB" in lines[1]
    assert "gap 4.0 %" in plan_text(PLAN)
    assert "160 tokens/s" in plan_text(PLAN)
    assert "rejected host-2: memory" in plan_text(PLAN)
    assert lines[-1] == PLAN["verdict"]


def test_fewer_nodes_are_told_as_stages() -> None:
    fewer = [{"shape": {"replicas": 1, "stages": stages}, "why": f"{stages}0.0/s"} for stages in (1, 2)]
    lines = plan_text(PLAN | {"alternatives": fewer}).splitlines()
    assert "  otherwise 1 stage: 10.0/s" in lines
    assert "  otherwise 2 stages: 20.0/s" in lines


def test_one_case_and_whole_tokens() -> None:
    loss = {"kl": 0.1, "top1": 0.5, "tokens": 256.0}
    text = verify_text({"identical": True, "cases": 1, "tokens": 64, "vs_source": loss})
    assert "(1 case, 64 tokens)" in text
    assert "(256 tokens)" in text


def test_the_memory_that_is_assumed_comes_first() -> None:
    assert "8.0 GiB (or 2.0 GiB, 4.0 GiB, 16.0 GiB)" in targets_text([load_target("pi5", None)])


def test_a_plan_of_a_graph() -> None:
    graph = {key: value for key, value in PLAN.items() if "token" not in key and "ttft" not in key}
    text = plan_text(graph | {"predicted_items_per_s": 20.0, "predicted_latency_ms": 70.5})
    assert "20.0 items/s, one takes 70.5 ms" in text
    assert "tokens/s," not in text


def test_numbers_stand_to_the_right() -> None:
    assert table(["a", "n"], [["x", "1"], ["yy", "10"]]) == "a    n\nx    1\nyy  10"
