"""Plans are held against what their stages took, and made again: with stages that take what a test says."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ruvcompile import compile as steps
from ruvcompile import settle as settling
from ruvcompile.measure.staged import NotMeasuredError, Reality
from ruvcompile.plan import Plan
from ruvcompile.settle import looks
from ruvrun.costs import load_costs, stage_key
from tests.assumed import assumed_fleet
from tests.compiler import builds
from tests.compiler.builds import snapshot
from tests.models import write_tiny_gguf

ROOT = Path(__file__).parents[2]
LAYERS = 6
build, plan = partial(builds.build, measured=True), partial(builds.plan, measured=True)
"""What is measured is the world's to say."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return write_tiny_gguf(tmp_path_factory.mktemp("settle") / "tiny.gguf", layers=LAYERS)


class World:
    """Stages that take ``slow`` times what was assumed for the units of some layers; notes every look at them.

    By the clock a step takes ``waits`` times as long as its thread works, where several work. All sequences together
    get ``rate`` times what the stages would let them have, a single one ``lone`` and one for each stage ``few`` times
    that.
    """

    def __init__(
        self, slow: Callable[[str], float], rate: float = 1.0, waits: float = 1.0, lone: float = 1.0, few: float = 1.0
    ) -> None:
        self.slow, self.rate, self.waits, self.lone, self.few = slow, rate, waits, lone, few
        self.plans: list[Plan] = []

    def measure(self, manifest: Path, streams: Sequence[int], **_: Any) -> tuple[Reality, ...]:
        assert manifest.is_file(), "what is run is a build"
        made = self.plans[-1]
        ms = [sum(self._ms(unit.nodes[0]) for unit in units) for units in settling.units_of(made)]
        return tuple(self._many(made, ms, count) if count > 1 else self._one(made, ms) for count in streams)

    def _many(self, made: Plan, ms: Sequence[float], streams: int) -> Reality:
        slower = max(ms) * made.rows / max(made.inner_ms)
        rate = self.rate if streams == made.streams else self.few
        rows = made.rows if streams == made.streams else 1
        own = tuple(each * rows for each in ms)
        per_s = rate * settling.promised(made, streams) / slower
        return Reality(tuple(self.waits * each for each in own), (1 << 20,) * len(ms), per_s, streams, own)

    def _one(self, made: Plan, ms: Sequence[float]) -> Reality:
        round_ms = 1e3 / settling.promised_alone(made) + sum(ms) - sum(made.alone_ms)
        return Reality(tuple(ms), (1 << 20,) * len(ms), self.lone * 1e3 / round_ms, 1, tuple(ms))

    def _ms(self, node: str) -> float:
        return self.slow(node)


@pytest.fixture
def world(monkeypatch) -> Callable[[World], World]:
    """Builds measure nothing themselves; what is looked at together is the world's."""

    def enter(made: World) -> World:
        monkeypatch.setattr(steps, "measure_fleet", assumed_fleet)
        monkeypatch.setattr(looks, "measure_staged", made.measure)
        known = looks.can_run_here

        def noted(plan: Plan) -> bool:
            made.plans.append(plan)
            return known(plan)

        monkeypatch.setattr(looks, "can_run_here", noted)
        return made

    return enter


def layers(result: dict[str, Any]) -> list[int]:
    return [stage["graph_nodes"] for stage in result["stages"]]


def even(_node: str) -> float:
    return 1.0


def late_layers_slow(node: str) -> float:
    """Units of the second half of the layers take twice as long."""
    return 2.0 if any(f"layers.{number}/" in node for number in range(LAYERS // 2, LAYERS)) else 1.0


def test_a_plan_that_holds_is_lowered_once(model, tmp_path, world) -> None:
    made = world(World(even))
    result = build(model, tmp_path / "dist", stages=2)
    assert len(made.plans) == 1
    assert result["measured"]["difference"] <= settling.AGREED


def test_stages_that_take_longer_than_their_units_move_the_cut(model, tmp_path, world) -> None:
    made = world(World(late_layers_slow))
    result = build(model, tmp_path / "dist", stages=2)
    first, last = made.plans[0], made.plans[-1]
    assert len(first.pieces[0].nodes) < len(last.pieces[0].nodes), "the slow second half got smaller"
    slow = [sum(late_layers_slow(unit.nodes[0]) for unit in units) for units in settling.units_of(last)]
    assert max(slow) / min(slow) < 1.25
    assert result["measured"]["difference"] <= settling.AGREED
    assert layers(result) == [len(piece.nodes) for piece in last.pieces]


def test_stages_that_take_turns_on_a_core_are_corrected_by_what_they_work_themselves(
    model, tmp_path, world, monkeypatch
) -> None:
    """By the clock every one of them takes half as long again, which is no reason to move a cut."""
    monkeypatch.setattr("ruvcompile.compile.cores", lambda: 2)
    monkeypatch.setattr("ruvcompile.compile.allowed", lambda: {0, 1})
    world(World(even, waits=1.5))
    level = build(model, tmp_path / "level", nodes=3, stages=3)
    assert level["measured"]["uncorrected"] <= settling.AGREED
    world(World(late_layers_slow, waits=1.5))
    moved = build(model, tmp_path / "moved", nodes=3, stages=3)
    assert layers(moved)[-1] < layers(level)[-1], "slow layers are shared among more stages"


def test_rounds_of_several_that_take_longer_are_promised_so(model, tmp_path, world) -> None:
    made = world(World(even, rate=0.8))
    result = build(model, tmp_path / "dist", stages=2)
    assert result["predicted_tokens_per_s"] == pytest.approx(0.8 * settling.promised(made.plans[0]), rel=0.01)
    assert result["predicted_tokens_per_s_one"] == pytest.approx(settling.promised_alone(made.plans[0]), rel=0.01)
    assert result["measured"]["difference"] <= settling.AGREED


def test_a_single_users_rounds_that_take_longer_are_promised_so(model, tmp_path, world) -> None:
    made = world(World(even, lone=0.9))
    result = build(model, tmp_path / "dist", stages=2)
    assert result["predicted_tokens_per_s_one"] == pytest.approx(0.9 * settling.promised_alone(made.plans[0]), rel=0.01)
    assert result["measured"]["uncorrected"] == pytest.approx(0.1, abs=0.01)
    assert result["measured"]["per_s_one"] == pytest.approx(result["predicted_tokens_per_s_one"], rel=0.01)


def test_a_difference_that_nothing_explains_is_told(model, tmp_path, world) -> None:
    world(World(even, rate=1.25))
    result = build(model, tmp_path / "dist", stages=2)
    assert result["measured"]["difference"] == pytest.approx(0.25, abs=0.01)


def test_no_more_cuts_than_so_many_and_the_last_of_them_is_corrected_too(model, tmp_path, world) -> None:
    """The first layer takes three times as long in the first look; a third cut that would be better is not tried."""
    made = World(lambda node: (1.0, 3.0)[len(made.plans) % 2] if "layers.0/" in node else 1.0)
    first, rates = made.measure, list[float]()

    def noted(*given: Any, **named: Any) -> tuple[Reality, ...]:
        seen = first(*given, **named)
        rates.append(seen[-1].per_s)
        return seen

    made.measure = noted  # type: ignore[method-assign]
    world(made)
    result = build(model, tmp_path / "dist", stages=2)
    one, *others = made.plans
    assert len({plan.cuts for plan in (one, *others)}) == settling.CUTS
    assert len(rates) == settling.CUTS + 1
    mean = len(rates[1:]) / sum(1 / rate for rate in rates[1:])
    assert result["predicted_tokens_per_s"] == pytest.approx(mean, rel=1e-3)


def test_the_table_of_a_build_gives_the_same_build_and_nothing_is_run(model, tmp_path, world, monkeypatch) -> None:
    """Every byte, what stages took when they ran together included; the second finds the first's keys in its place."""
    world(World(late_layers_slow))
    build(model, tmp_path / "dist", stages=2)
    first = snapshot(tmp_path / "dist")
    assert {"manifest.toml", "report.html", "plan.json", "costs.toml"} < first.keys()
    monkeypatch.setattr(looks, "measure_staged", None)
    given = {"costs": [shutil.copy(tmp_path / "dist" / "costs.toml", tmp_path / "given.toml")], "stages": 2}
    made = build(model, tmp_path / "dist", **given)
    second = snapshot(tmp_path / "dist")
    assert second.keys() == first.keys()
    assert [name for name in first if second[name] != first[name]] == []
    again = plan(model, tmp_path, **given)
    assert layers(again) == layers(made)


def test_the_rows_of_the_stages_are_in_the_table(model, tmp_path, world) -> None:
    made = world(World(even))
    build(model, tmp_path / "dist", stages=2)
    rows = load_costs(tmp_path / "dist" / "costs.toml").stage
    counts = [len(units) for units in settling.units_of(made.plans[-1])]
    keys = made.plans[-1].keys
    assert {row.key for row in rows} == {stage_key(keys[: counts[0]]), stage_key(keys[counts[0] :])}
    assert {row.look for row in rows} == {1}, "a plan that holds at once is looked at once"
    assert all(row.ms > 0 and row.per_s > 0 and row.peak_rss_bytes for row in rows)


def test_a_kind_of_machine_that_is_this_one_is_run_whatever_its_name(model, tmp_path, world) -> None:
    folder = tmp_path / "targets" / "mine"
    folder.mkdir(parents=True)
    (folder / "target.toml").write_text((ROOT / "targets" / "host" / "target.toml").read_text())
    fleet = tmp_path / "fleet.toml"
    fleet.write_text("".join(f'[[node]]\nname = "{name}"\ntarget = "mine"\naddress = "local"\n' for name in "ab"))
    world(World(even))
    result = build(model, tmp_path / "dist", fleet=str(fleet), targets_dir=str(folder.parent), stages=2)
    assert result["measured"]["streams"], "its stages were looked at together"


def test_where_the_stages_cannot_run_the_build_is_made_and_says_so(model, tmp_path, world) -> None:
    made = world(World(even))

    def refuses(*_: Any, **__: Any) -> tuple[Reality, ...]:
        raise NotMeasuredError("memory-short", "9 GiB are needed here", hint="")

    made.measure = refuses  # type: ignore[method-assign]
    world(made)
    result = build(model, tmp_path / "dist", stages=2)
    assert "measured" not in result
    assert (tmp_path / "dist" / "manifest.toml").is_file()


def test_machines_elsewhere_are_not_run_here(model, tmp_path, world) -> None:
    made = world(World(even))
    monkey: list[int] = []
    made.measure = lambda *_, **__: monkey.append(1)  # type: ignore[method-assign,assignment]
    world(made)
    build(model, tmp_path / "dist", target="pi5", nodes="2", stages=2)
    assert not monkey


def test_a_corrected_plan_is_looked_at_again(model, tmp_path, world) -> None:
    """What it was corrected by it agrees with: only another look can say whether it holds. Of two that differ neither
    is more right: what is promised is the mean round, and by how much the later look is off is told.
    """
    made = world(World(even, rate=0.8))
    first = made.measure
    rates: list[float] = []

    def weary(*given: Any, **named: Any) -> tuple[Reality, ...]:
        *fewer, all_of_them = first(*given, **named)
        rates.append(all_of_them.per_s)
        return *fewer, all_of_them if len(rates) == 1 else replace(all_of_them, per_s=0.9 * rates[0])

    made.measure = weary  # type: ignore[method-assign]
    world(made)
    result = build(model, tmp_path / "dist", stages=2)
    assert len(rates) == 2
    assert result["predicted_tokens_per_s"] == pytest.approx(rates[0] * 2 / (1 + 1 / 0.9), rel=1e-3)
    assert result["measured"]["difference"] == pytest.approx(0.05, abs=0.005)
    again = build(model, tmp_path / "two", stages=2, costs=[str(tmp_path / "dist" / "costs.toml")])
    assert len(rates) == 2, "nothing is run"
    assert again["measured"] == result["measured"]
    assert again["predicted_tokens_per_s"] == result["predicted_tokens_per_s"]
    assert {row.look for row in load_costs(tmp_path / "dist" / "costs.toml").stage} == {1, 2}
