"""The benchmark of promises, on measurements that are made up: what is repeated, what counts, what is only listed."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOM = Path(__file__).parents[2] / "examples" / "benchmarks"
QUIET, NOISY = [99.0, 100.0, 101.0], [80.0, 100.0, 120.0]


@pytest.fixture
def prediction(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOM))
    names = {path.stem for path in ROOM.glob("*.py")}
    for name in names & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)
    yield importlib.import_module("prediction")
    for name in names & sys.modules.keys():
        del sys.modules[name]


class Machine:
    """One on which the calibration step takes so long; 10 ms when the case was built."""

    def __init__(self, ms: float = 10.0) -> None:
        self.ms = ms

    def step_ms(self, cores: int) -> float:
        assert cores == 2, "as many as are at work"
        return self.ms


def measured(
    prediction: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    rounds: Sequence[Sequence[float]],
    machine: Machine | None = None,
) -> dict[str, Any]:
    """A case of which 100 tokens/s are promised, and that many are seen in each round."""
    stage = {"node": "a", "predicted_ms": 1.0, "measured_ms": 1.0, "peak_rss_bytes": 110}
    (tmp_path / "plan.json").write_text(json.dumps({"stages": [{"predicted_rss_bytes": 100, "kv_bytes": 0}]}))
    runs = iter([rate for each in rounds for rate in each])

    def command(arguments: Sequence[str]) -> str:
        assert arguments[:2] == ["ruvrun", "bench"]
        return json.dumps({"predicted_per_s": 100.0, "tokens_per_s": next(runs), "stages": [stage]})

    monkeypatch.setattr(prediction, "command", command)
    case = prediction.Case("case", tmp_path / "manifest.toml", (), 2, 10.0)
    found: dict[str, Any] = prediction.measure(case, machine or Machine(), 3)
    assert next(runs, None) is None, "every run that was to be made was"
    return found


def test_a_quiet_case_is_measured_once(prediction, monkeypatch, tmp_path) -> None:
    found = measured(prediction, monkeypatch, tmp_path, [QUIET])
    assert (found["rounds"], found["noisy"], found["deviation"]) == (1, False, 0.0)


def test_a_noisy_case_is_repeated_until_it_is_quiet(prediction, monkeypatch, tmp_path) -> None:
    found = measured(prediction, monkeypatch, tmp_path, [NOISY, NOISY, [89.0, 90.0, 91.0]])
    assert (found["rounds"], found["noisy"]) == (3, False)
    assert found["deviation"] == pytest.approx(0.1)


def test_one_that_stays_noisy_is_repeated_three_times_and_told_as_such(prediction, monkeypatch, tmp_path) -> None:
    found = measured(prediction, monkeypatch, tmp_path, [NOISY] * 4)
    assert (found["rounds"], found["noisy"]) == (4, True)


def test_a_machine_that_became_slower_is_no_wrong_plan(prediction, monkeypatch, tmp_path) -> None:
    found = measured(prediction, monkeypatch, tmp_path, [[50.0] * 3], Machine(20.0))
    assert found["deviation"] == pytest.approx(0.0)


def case(name: str, deviation: float, noisy: bool = False) -> dict[str, Any]:
    memory = [{"planned": 90, "measured": 100}, {"planned": 105, "measured": 100}]
    return {"case": name, "deviation": deviation, "noisy": noisy, "memory": memory}


def test_noisy_cases_are_listed_and_do_not_count(prediction) -> None:
    told = prediction.summary([case("a", 0.01), case("b", 0.5, True), case("c", 0.03), case("d", 0.09)])
    assert (told["median"], told["worst"], told["noisy"], told["cases"]) == (0.03, 0.09, ["b"], 4)
    assert told["held"]
    assert told["memory_worst"] == pytest.approx(0.1)


def test_where_all_are_noisy_nothing_is_claimed(prediction) -> None:
    told = prediction.summary([case("a", 0.0, True)])
    assert not told["held"]
    assert told["noisy"] == ["a"]


def test_one_case_beyond_the_worst_that_may_be_is_enough(prediction) -> None:
    assert not prediction.summary([case("a", 0.0), case("b", 0.0), case("c", 0.11)])["held"]


def test_a_slowed_pair_is_a_share_of_what_both_nodes_do_side_by_side(prediction) -> None:
    runs = [
        {"planned": planned, "equal": 70.0, "ideal": 120.0, "full": 100.0, "half": 50.0}
        for planned in (108.0, 114.0, 60.0)
    ]
    told = sys.modules["slow"].shares(runs)
    assert told["planned"] == pytest.approx(0.9)
    assert told["equal"] == pytest.approx(70 / 120)
    assert told["planned_of_alone"] == told["planned_of_1.5"] == pytest.approx(0.72)
    assert told["half_of_full"] == 0.5
