"""What a report shows, as data: nothing is left out, counted twice, or put where it is not."""

from __future__ import annotations

import json
import re
from importlib import resources
from pathlib import Path

import msgspec
import pytest

from ruvcompile.report.contents import Figures
from ruvcompile.report.facts import bound_text, sources, ways
from ruvcompile.report.graph import LARGEST, PROFILE, costed, largest, operators, own_ms, profile, scopes
from ruvcompile.report.run import Run, RunStage, planned_ms, planned_per_s, rows_of
from ruvcompile.report.stages import MEMORY, OWN, choices, in_order, memory, name_of, times
from ruvrun.costs import Overhead, Point
from ruvrun.manifest import PACKED, Expected
from tests.compiler.reports import PARTS, costs, figures, forecast, graph_figures, manifest


def test_the_lower_bound_says_what_it_is_the_larger_of() -> None:
    """``PLAN`` has 6 ms as its bound."""
    for bounds, says in (
        ({"relaxation": 5.5, "search": 6.0}, "The lower bound is the larger of two: no cut beats 5.50 ms"),
        ({"relaxation": 6.0, "search": 4.0}, "the search has proved that none takes less than 4.00 ms"),
        ({"relaxation": 6.0, "search": 7.0}, "none of the cuts that were looked at beats 7.00 ms"),
    ):
        assert says in bound_text(figures(bounds=bounds))
    assert "larger" not in bound_text(figures(bounds={"relaxation": 6.0, "search": 7.0})), "no bound of others"
    for by, says in (("search", "the search has proved that no cut beats"), ("relaxation", "that of a linear program")):
        assert f"is the larger of two: it is {'what ' if by == 'search' else ''}{says}" in bound_text(
            figures(bound_by=by)
        )
    assert bound_text(figures()) == bound_text(figures(bounds={"search": 6.0})) == ""


def test_units_share_the_time_of_their_stage_as_their_rows_tell() -> None:
    plan = figures(layers=3)
    units = costed(plan, costs(), manifest(plan))
    assert [unit.name for unit in units] == [place.name for place in plan.units]
    assert [unit.layer for unit in units] == [None, 0, 0, 1, 1, 2, 2, None]
    for number, stage in enumerate(plan.stages):
        held = {unit.name: unit.ms for unit in units if unit.stage == number}
        rows = {place.name: PARTS[place.key] for place in plan.units if place.stage == number}
        stretch = stage.predicted_ms / sum(rows.values())
        assert held == pytest.approx({name: ms * stretch for name, ms in rows.items()})


def test_rows_are_asked_for_the_planned_size_of_a_step() -> None:
    """What costs nothing more with more rows has a smaller share then."""
    (embed, *others) = costs().unit
    flat = msgspec.structs.replace(embed, curve=[Point(ms=0.1), Point(ms=0.1, rows=4)])
    table = msgspec.structs.replace(costs(), unit=[flat, *others])
    shares = {}
    for rows in (1, 4):
        plan = figures(stages=1, rows=rows)
        units = costed(plan, table, manifest(plan))
        shares[rows] = units[0].ms / units[1].ms
    assert shares[1] == pytest.approx(2 * shares[4]) == pytest.approx(0.25)


def test_a_row_of_other_threads_or_company_is_the_second_choice() -> None:
    plan = figures()
    (row, *others) = costs().unit
    wide = msgspec.structs.replace(row, threads=4, ms=9.0)
    other = msgspec.structs.replace(row, target="pi5", ms=8.0)
    busy = msgspec.structs.replace(row, beside=2, ms=7.0, curve=[])
    table = msgspec.structs.replace(costs(), unit=[wide, row, other, busy, *others])
    assert costed(plan, table, manifest(plan))[0].row == busy
    table = msgspec.structs.replace(costs(), unit=[other, *others])
    assert "embed" not in [unit.name for unit in costed(plan, table, manifest(plan))]


def test_a_process_takes_its_own_time_first() -> None:
    plan = figures(rows=4)
    row = Overhead(kind="decoder", target="host", backend="onnxruntime", threads=1, source=0, stage_ms=0.5)
    row = msgspec.structs.replace(row, stage_row_ms=0.1, byte_ms=1e-4)
    table = msgspec.structs.replace(costs(), overhead=[row, msgspec.structs.replace(row, kind="graph", stage_ms=9.0)])
    first, second = plan.stages
    assert own_ms(plan, table, first) == pytest.approx(0.5 + 0.4 + 4e-4 * first.cut_bytes)
    assert own_ms(plan, table, second) == pytest.approx(0.9 + 4e-4 * (first.cut_bytes + second.cut_bytes))
    units = costed(plan, table, manifest(plan))
    parts = times(plan, table, units)
    for number, stage in enumerate(plan.stages):
        own = own_ms(plan, table, stage)
        assert sum(unit.ms for unit in units if unit.stage == number) == pytest.approx(stage.predicted_ms - own)
        assert [part.value for part in parts if (part.stage, part.what) == (number, OWN)] == [own]
    assert own_ms(plan, costs(), first) == 0.0


def test_a_profile_of_layers_has_a_place_for_each() -> None:
    plan = figures(layers=4)
    bars = profile(costed(plan, costs(), manifest(plan)))
    assert [(bar.label, bar.first, bar.part) for bar in bars[:4]] == [
        ("embedding", 0, "embedding"),
        ("layer 0", 1, "attention"),
        ("layer 0", 1, "MLP"),
        ("layer 1", 2, "attention"),
    ]
    assert (bars[-1].label, bars[-1].first, bars[-1].stage) == ("output head", 5, 1)


@pytest.mark.parametrize("count", [2, 7, PROFILE, PROFILE + 1, 5 * PROFILE + 3])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_a_profile_holds_every_unit_once_and_no_bar_spans_a_cut(count: int, stages: int) -> None:
    plan = graph_figures(count, min(stages, count))
    units = costed(plan, costs(Conv=2.0, Add=0.5), manifest(plan))
    bars = profile(units)
    assert len(bars) <= PROFILE + stages
    assert [number for bar in bars for number in range(bar.first, bar.last + 1)] == list(range(count))
    for bar in bars:
        held = units[bar.first : bar.last + 1]
        assert {unit.stage for unit in held} == {bar.stage}
        assert bar.ms == pytest.approx(sum(unit.ms for unit in held))


def test_the_largest_units_and_the_rest_are_all_of_them() -> None:
    plan = graph_figures(50)
    units = costed(plan, costs(Conv=2.0, Add=0.5), manifest(plan))
    most, rest = largest(units)
    assert (len(most), len(rest)) == (LARGEST, 30)
    assert min(unit.ms for unit in most) >= max(unit.ms for unit in rest)
    assert sorted(unit.name for unit in (*most, *rest)) == sorted(unit.name for unit in units)


def test_operators_are_counted_over_the_whole_graph() -> None:
    plan = figures(layers=5)
    units = costed(plan, costs(), manifest(plan))
    found = operators(units)
    whole = sum(stage.predicted_ms for stage in plan.stages)
    assert found[0] == ("MatMul", 12, pytest.approx(0.75 * whole))
    assert sum(ms for _, _, ms in found) == pytest.approx(whole)
    few = operators(units, count=2)
    assert [name for name, _, _ in few] == ["MatMul", "mlp", "3 other operators"]
    assert sum(ms for _, _, ms in few) == pytest.approx(whole)


def test_scopes_are_a_graphs_layers() -> None:
    plan = graph_figures(40)
    found = scopes(costed(plan, costs(Conv=2.0, Add=0.5), manifest(plan)))
    assert [(name, count) for name, count, _ in found] == [(f"block.{number}", 4) for number in range(10)]
    assert sum(ms for _, _, ms in found) == pytest.approx(sum(stage.predicted_ms for stage in plan.stages))
    places = [msgspec.structs.replace(place, name=place.name.split("/")[-1]) for place in plan.units]
    flat = msgspec.structs.replace(plan, units=places)
    assert scopes(costed(flat, costs(Conv=2.0), manifest(flat))) == []


def test_the_parts_of_a_stage_add_up_to_its_time() -> None:
    plan = figures(stages=2, replicas=2)
    slower = [msgspec.structs.replace(stage, predicted_ms=(1 + stage.pipeline) * 4.0) for stage in plan.stages]
    plan = msgspec.structs.replace(plan, stages=slower)
    parts = times(plan, costs(), costed(plan, costs(), manifest(plan)))
    found = [{part.what: part.value for part in parts if part.stage == index} for index in range(4)]
    assert [sum(each.values()) for each in found] == pytest.approx([4.0, 4.0, 8.0, 8.0], rel=2e-3)
    # The first stage of each pipeline holds the same; the nodes of the second are half as fast.
    assert {what: 2 * ms for what, ms in found[0].items()} == pytest.approx(found[2])
    bare = msgspec.structs.replace(plan, units=[])
    assert {part.what for part in times(bare, costs(), [])} == {"other nodes"}


def test_of_a_graph_the_operators_that_cost_most_are_told_apart() -> None:
    plan = graph_figures(60, ops=("A", "B", "C", "D", "E", "F"))
    units = costed(plan, costs(A=0.01, B=0.02, C=0.03, D=0.04, E=0.05, F=0.06), manifest(plan))
    assert {part.what for part in times(plan, costs(), units)} == {"F", "E", "D", "C", "other nodes"}


def test_memory_is_told_in_parts() -> None:
    plan = figures()
    first, second = plan.stages
    expected = [Expected(node=first.node, weight_bytes=70 << 20, working_bytes=5 << 20, runtime_bytes=52 << 20)]
    parts = memory(plan, manifest(plan, expected))
    told = {(part.stage, part.what): part.value for part in parts}
    assert [told[0, what] for what in MEMORY] == [70 << 20, first.kv_bytes, 5 << 20, 52 << 20]
    assert told[1, "weights"] == int(second.weight_bytes * PACKED)  # as an older plan reckoned
    assert sum(size for (stage, _), size in told.items() if stage == 1) == second.predicted_rss_bytes
    assert (1, "activations") not in told


def test_the_plan_comes_first_and_then_the_fastest() -> None:
    others = [
        {"shape": {"replicas": 1, "stages": 1}, "fits": True, "tokens_per_s": 40.0, "tokens_per_s_one": 40.0},
        {"shape": {"replicas": 2, "stages": 1}, "fits": True, "tokens_per_s": 200.0, "tokens_per_s_one": 90.0},
        {"shape": {"replicas": 1, "stages": 2}, "fits": True, "tokens_per_s": 170.0},
        {"shape": {"replicas": 1, "stages": 4}, "fits": False},
    ]
    found = choices(figures(alternatives=others))
    assert [(choice.label, choice.chosen, choice.many) for choice in found] == [
        ("2 stages (the plan)", True, 160.0),
        ("2 x 1 stage", False, 200.0),
        ("2 stages, cut elsewhere", False, 170.0),
        ("1 stage", False, 40.0),
    ]


def test_several_pipelines_have_stages_of_their_own() -> None:
    plan = figures(stages=2, replicas=2)
    assert [name_of(plan, stage) for stage in plan.stages] == [
        "stage 0.0 · pi-0-0",
        "stage 0.1 · pi-0-1",
        "stage 1.0 · pi-1-0",
        "stage 1.1 · pi-1-1",
    ]
    run = Run([RunStage(stage.node) for stage in reversed(plan.stages)])
    assert in_order(run, plan) == [3, 2, 1, 0]


@pytest.mark.parametrize(
    ("streams", "rows", "per_s"),
    # Two pipelines of two stages in which k rows take 1 + k ms each: a round is the longer of all steps on one stage
    # and of one step on all.
    [(1, 1, 250.0), (4, 1, 1000.0), (8, 2, 1e3 * 8 / 6), (16, 4, 1600.0), (6, 2, 1e3 * 3 / 6 * 2)],
)
def test_a_run_is_held_against_the_plan_for_its_own_streams(streams: int, rows: int, per_s: float) -> None:
    plan = figures(stages=2, replicas=2)
    known = msgspec.structs.replace(plan, forecast=forecast(plan))
    run = Run([], streams=streams)
    assert rows_of(known, run) == rows
    assert planned_per_s(known, manifest(known), streams) == pytest.approx(per_s)
    if rows != known.rows:
        assert planned_ms(known, 3, rows) == 1 + rows
    assert planned_ms(plan, 3, rows) == plan.stages[3].predicted_ms
    assert planned_per_s(plan, manifest(plan), streams) == plan.per_s
    promise = msgspec.structs.replace(manifest(plan).plan, streams=[99, streams], per_s=[1.0, 77.5])
    promised = msgspec.structs.replace(manifest(plan), plan=promise)
    assert planned_per_s(known, promised, streams) == 77.5


def test_ways_lead_from_the_head_through_every_stage_and_back() -> None:
    plan = figures(stages=2)
    known = msgspec.structs.replace(plan, forecast=forecast(plan))
    assert [(way.sender, way.receiver) for way in ways(known)] == [
        ("head on elsewhere", "pi-0-0"),
        ("pi-0-0", "pi-0-1"),
        ("pi-0-1", "head on elsewhere"),
    ]
    assert ways(plan) == []


def test_who_measured_is_told_with_the_spread() -> None:
    (source,) = sources(costs())
    assert (source.machine, source.rows, source.median, source.largest) == ("fast (box)", 4, 0.02, 0.02)


def test_what_gather_and_the_forecast_add_comes_back_as_it_was() -> None:
    plan = figures(stages=3, replicas=2)
    known = msgspec.structs.replace(plan, forecast=forecast(plan))
    assert msgspec.json.decode(json.dumps(msgspec.to_builtins(known)), type=Figures) == known


def test_colours_stand_out_by_day_and_by_night() -> None:
    """Graphic parts against the page, as WCAG 2.1 counts contrast: at least 3."""
    style = resources.files("ruvcompile.report").joinpath("report.css").read_text("utf-8")
    day, night = re.findall(r"^ *:root \{(.*?)\}", style, re.DOTALL | re.MULTILINE)[:2]
    for scheme in (day, night):
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", scheme))
        assert len(colours) == 20
        for name, colour in colours.items():
            if name not in ("paper", "box", "grid"):
                least = 4.5 if name in ("ink", "faint", "stage-0") else 2.9 if name.startswith("part") else 3.0
                assert _contrast(colour, colours["paper"]) >= least, (name, colour)


def _contrast(one: str, other: str) -> float:
    bright, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_a_plan_of_the_first_version_is_read() -> None:
    path = Path(__file__).parents[1] / "data" / "formats" / "v1" / "plan.json"
    plan = msgspec.json.decode(path.read_bytes(), type=Figures)
    assert [stage.node for stage in plan.stages] == ["pi-0", "pi-1"]
    assert (plan.rows, plan.units, plan.cuts, plan.forecast) == (1, [], [], None)
