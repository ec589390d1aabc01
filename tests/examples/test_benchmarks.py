"""Benchmarks: the list, and the form and the arithmetic of a report on measurements that are made up."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOM = Path(__file__).parents[2] / "examples" / "benchmarks"
NAMES = [
    "bubble",
    "build",
    "compile-70b",
    "compile-8b",
    "dispatch",
    "equality",
    "hop",
    "large-graphs",
    "memory",
    "mixed",
    "newcomer",
    "openvino-batch",
    "openvino-parity",
    "parity",
    "planner",
    "prediction",
    "prefill",
    "prefix",
    "scaling",
    "simulation",
    "two-nodes",
    "two-nodes-one",
    "users16",
    "users16-ov",
    "users32",
    "users32-ov",
]
KEYS = {"name", "value", "unit", "target", "ok", "runs", "spread", "machine", "versions", "details"}


@pytest.fixture
def harness(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("harness", ROOM / "harness.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "harness", module)
    spec.loader.exec_module(module)
    return module


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(ROOM / "run.sh"), *arguments], capture_output=True, text=True, check=False)


def _script(of: Iterator[float], order: list[str], name: str) -> Any:
    def measure() -> float:
        order.append(name)
        return next(of)

    return measure


def test_without_a_name_they_are_listed_one_a_line() -> None:
    done = _run()
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()] == NAMES


def test_an_unknown_name_is_wrong_usage_and_shows_the_list() -> None:
    done = _run("three-nodes")
    assert done.returncode == 2
    assert done.stdout == ""
    assert all(name in done.stderr for name in NAMES)


def test_every_benchmark_has_its_table() -> None:
    titles = re.findall(r"^## (.+)$", (ROOM / "README.md").read_text("utf-8"), re.MULTILINE)
    assert sorted(", ".join(titles).split(", ")) == NAMES


def test_pairs_are_measured_in_turn_and_reported_by_their_median_ratio(
    harness: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    order: list[str] = []
    a, b = [10.0, 30.0, 20.0], [10.0, 10.0, 10.0]
    pairs = harness.measure_pairs(_script(iter(a), order, "a"), _script(iter(b), order, "b"), 3)
    assert order == ["a", "b"] * 3
    benchmark = harness.Benchmark("stub", "ratio", harness.Target(at_least=1.7))
    result = harness.ratio_report(benchmark, pairs, details={"why": "a test"}, versions={"stub": "1"})
    assert harness.finish(result) == 0
    *_, last = capsys.readouterr().out.splitlines()
    told = json.loads(last)
    assert told.keys() == KEYS
    assert told["value"] == 2.0
    assert told["target"] == {"at_least": 1.7}
    assert told["ok"] is True
    assert [run["ratio"] for run in told["runs"]] == [1.0, 3.0, 2.0]
    assert told["spread"] == pytest.approx({"p10": 1.2, "p90": 2.8})
    assert told["details"] == {"a": 20.0, "b": 10.0, "why": "a test"}
    assert {"cpu", "cores", "memory_bytes", "kernel", "load_before"} <= told["machine"].keys()


@pytest.mark.parametrize(
    ("bound", "value", "also", "ok"),
    [
        ({"at_least": 1.0}, 1.0, True, True),
        ({"at_least": 1.0}, 0.99, True, False),
        ({"at_most": 45.0}, 45.0, True, True),
        ({"at_most": 45.0}, 45.1, True, False),
        ({"at_most": 45.0}, 20.0, False, False),
    ],
)
def test_the_exit_code_says_whether_the_target_is_met(
    harness: ModuleType,
    capsys: pytest.CaptureFixture[str],
    bound: dict[str, float],
    value: float,
    also: bool,
    ok: bool,
) -> None:
    benchmark = harness.Benchmark("stub", "s", harness.Target(**bound))
    result = harness.report(benchmark, value, runs=[], spread=[value], details={}, versions={}, also=also)
    assert harness.finish(result) == (0 if ok else 1)
    told = json.loads(capsys.readouterr().out)
    assert told["ok"] is ok
    assert told["target"] == bound


@pytest.mark.parametrize("count", [1, 2, 7, 10])
def test_quantiles_are_those_of_the_standard_library(harness: ModuleType, count: int) -> None:
    values = [float((number * 7) % 11) for number in range(count)]
    assert harness.quantile(values, 0.5) == statistics.median(values)
    assert harness.quantile(values, 0.0) == min(values)
    assert harness.quantile(values, 1.0) == max(values)
    if count > 1:
        deciles = statistics.quantiles(values, n=10, method="inclusive")
        assert harness.quantile(values, 0.1) == pytest.approx(deciles[0])
        assert harness.quantile(values, 0.9) == pytest.approx(deciles[-1])


def test_options_are_at_least_seven_pairs_unless_said(harness: ModuleType) -> None:
    assert harness.read_options("about", arguments=[]).pairs >= 7
    assert harness.read_options("about", arguments=["--pairs", "2", "--reuse"]) == harness.Options(pairs=2, reuse=True)
    with pytest.raises(SystemExit) as refused:
        harness.read_options("about", arguments=["--tokens", "1"])
    assert refused.value.code == 2


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
def test_two_cores_are_two_of_ours(harness: ModuleType) -> None:
    first, second = harness.two_cores()
    assert first != second
    assert {first, second} <= os.sched_getaffinity(0)
