"""Results as text."""

from __future__ import annotations

from ruvcompile.cli.listing import targets_text
from ruvcompile.cli.plans import plan_text
from ruvcompile.cli.results import verify_text
from ruvcompile.cli.table import table
from ruvcompile.targets import load_target
from tests.plans import PLAN

GRAPH_NODES = "graph nodes   weights  key/value     memory    sends    ms"


def test_a_plan_as_a_table() -> None:
    text = plan_text(PLAN)
    lines = text.splitlines()
    assert lines[0] == "2 stages: 2 nodes, host with onnxruntime"
    assert lines[1] == f"stage  node    {GRAPH_NODES}"
    assert lines[2] == "    0  host-0          200  50.0 MiB    1.0 MiB  128.0 MiB  4.5 KiB  5.25"
    assert "slowest part 6.25 ms, lower bound 6.00 ms, gap 4.0 %" in lines
    assert "160 tokens/s" in text
    assert "costs: measured" in lines
    assert "turned down  by      wanted    has" in lines
    assert "host-2       memory   3 GiB  1 GiB" in lines
    assert lines[-1] == PLAN["verdict"]


def test_a_step_of_many_rows_is_told_beside_one_of_one() -> None:
    stages = [stage | {"predicted_ms_one": 3.0} for stage in PLAN["stages"]]
    lines = plan_text(PLAN | {"stages": stages, "rows": 8}).splitlines()
    assert lines[1].endswith("   sends    ms  one row")
    assert lines[2].endswith("4.5 KiB  5.25     3.00")


def test_a_graph_has_no_key_value_space() -> None:
    lines = plan_text(PLAN | {"stages": [stage | {"kv_bytes": 0} for stage in PLAN["stages"]], "rows": 1}).splitlines()
    assert lines[1].startswith("stage  node    graph nodes   weights     memory")
    assert any(line.startswith("slowest part 6.25 ms, lower") for line in lines)


def test_machines_of_several_kinds_are_told_apart() -> None:
    stages = [PLAN["stages"][0], PLAN["stages"][1] | {"target": "pi5"}]
    lines = plan_text(PLAN | {"stages": stages}).splitlines()
    assert lines[0] == "2 stages: 2 nodes"
    assert lines[1] == f"stage  node    target  back end     {GRAPH_NODES}"


def replicas(count: int, **changed: object) -> dict[str, object]:
    """The plan so many times; of the last one something is different."""
    stages = [
        stage | {"pipeline": number, "node": f"n{number}{place}"} | (changed if number == count - 1 else {})
        for number in range(count)
        for place, stage in enumerate(PLAN["stages"])
    ]
    return PLAN | {"stages": stages, "shape": {"replicas": count, "stages": 2}}


def test_replicas_share_a_table() -> None:
    lines = plan_text(replicas(5)).splitlines()
    assert lines[0] == "5 pipelines of 2 stages: 10 nodes, host with onnxruntime"
    assert lines[2].startswith("    0  n00, n10, n20 and 2 more          200")
    assert lines[3].startswith("    1  n01, n11, n21 and 2 more          201")


def test_pipelines_that_differ_have_tables_of_their_own() -> None:
    text = plan_text(replicas(3, predicted_ms=9.0))
    assert "\n\npipelines 0, 1\nstage" in text
    assert "\n\npipeline 2\nstage" in text
    assert text.count("9.00") == 2


def test_alternatives_have_their_figures_and_their_reasons() -> None:
    others = [
        {"shape": {"replicas": 1, "stages": 1}, "fits": False, "why": "does not fit"},
        {"shape": {"replicas": 2, "stages": 1}, "tokens_per_s": 150.0, "tokens_per_s_one": 90.25, "ttft_ms": 250.4},
        {"shape": {"replicas": 1, "stages": 3}, "tokens_per_s": 9.0, "why": "a long story " * 12},
    ]
    lines = plan_text(PLAN | {"alternatives": others}).splitlines()
    at = lines.index("otherwise               per s  one alone  first token ms")
    assert lines[at + 1] == "1 stage                     -          -               -  does not fit"
    assert lines[at + 2] == "2 pipelines of 1 stage  150.0       90.2             250"
    assert lines[at + 3] == "3 stages                  9.0          -               -"
    assert lines[at + 4].startswith("    a long story")


def test_alternatives_of_a_graph() -> None:
    others = [{"shape": {"replicas": 1, "stages": 1}, "items_per_s": 5.5, "items_per_s_one": 5.5, "latency_ms": 181.0}]
    assert "1 stage      5.5        5.5         181.0" in plan_text(PLAN | {"alternatives": others})


def test_both_bounds_are_told_where_they_are_two() -> None:
    text = plan_text(PLAN | {"bounds": {"relaxation": 5.0, "search": 6.0}, "rows": 2})
    assert "slowest part 6.25 ms at 2 rows, lower bound" in text
    assert "bounds: relaxation 5.00 ms, search 6.00 ms" in text
    assert "lower bound 6.00 ms by search, gap" in plan_text(PLAN | {"bound_by": "search"})


def test_a_bound_is_told_beside_what_it_bounds() -> None:
    assert "ms; one pass 8.20 ms, lower bound" in plan_text(PLAN | {"bound_of": {"latency_ms": 8.2}})
    assert "\ncosts: measured; links assumed\n" in plan_text(PLAN | {"link_source": "assumed"})
    assert "ms; one round 8.20 ms, lower bound" in plan_text(PLAN | {"bound_of": {"round_ms": 8.2}})
    assert "one pass" not in plan_text(PLAN)


def test_a_search_that_left_something_out_says_so() -> None:
    assert "gap 4.0 %, not every cut was looked at" in plan_text(PLAN | {"exact": False})
    assert "not every cut" not in plan_text(PLAN | {"exact": True})


def test_a_plan_fits_a_narrow_terminal() -> None:
    rejected = [{"node": "pi-0", "rule": "place /backbone/* zone", "wanted": "lab or hall", "has": "nothing"}]
    wide = {"node": "raspberry-10", "target": "pi5", "weight_bytes": 2**34, "kv_bytes": 2**33}
    verdict = "a sentence that goes on and on, " * 9
    text = plan_text(replicas(2, **wide) | {"rejected": rejected, "verdict": verdict})
    assert max(map(len, text.splitlines())) <= 100


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
    assert "20.0 items/s, one takes 70.50 ms" in text
    assert "tokens/s," not in text


def test_what_is_usable_of_each_nodes_memory_is_told() -> None:
    """The reserve is off, so that it is plain what the stage's memory is held against."""

    def told(*sizes: int) -> str:
        stages = [stage | {"usable_bytes": size * 2**30} for stage, size in zip(PLAN["stages"], sizes, strict=True)]
        return plan_text(PLAN | {"stages": stages})

    assert "\nusable memory: 3.0 GiB of each node\n" in told(3, 3)
    assert "\nusable memory: 3.0 GiB of host-0, 7.0 GiB of host-1\n" in told(3, 7)
    assert "usable" not in plan_text(PLAN), "of an older plan it is not known"


def test_numbers_stand_to_the_right() -> None:
    assert table(["a", "n"], [["x", "1"], ["yy", "10"]]) == "a    n\nx    1\nyy  10"
