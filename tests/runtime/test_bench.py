"""The figures of a benchmark, from times that are given."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from ruvrun.bench import (
    Timeline,
    Work,
    bench,
    bench_graph,
    figures,
    generate,
    interval,
    percentiles,
    prompts,
    require_context,
    sweep,
)
from ruvrun.bench.stages import stage_figures, verdict
from ruvrun.cli import cli
from ruvrun.engine import Engine
from ruvrun.errors import FitError, InputError, UnreachableError
from ruvrun.frames import Counters, State
from ruvrun.manifest.blocks import Pool
from ruvrun.pipeline.driver import Driver
from tests.runtime.driving import driving, graph
from tests.runtime.fake_ring import WAIT, FakeRing, fake_manifest
from tests.runtime.graph_heads import serving
from tests.runtime.pools import pooled_workers


def test_one_stream_is_its_own_pace() -> None:
    found = figures([Timeline(0.0, [1.0, 1.5, 2.0, 2.5, 3.0])], steady=True)
    assert found["tokens_per_s"] == 2.0
    assert found["ttft_ms"] == {"p50": 1000.0, "p95": 1000.0}
    assert found["tpot_ms"] == {"p50": 500.0, "p95": 500.0}
    assert found["tokens"] == 5


def test_streams_count_only_while_all_are_at_work() -> None:
    early, late = Timeline(0.0, [1.0, 2.0, 3.0, 4.0]), Timeline(0.0, [2.0, 3.0, 4.0, 5.0])
    assert figures([early, late], steady=True)["tokens_per_s"] == 2.0
    assert figures([early, late], steady=False)["tokens_per_s"] == 8 / 5.0


def test_answers_of_one_token_have_a_rate_and_no_pace() -> None:
    found = figures([Timeline(0.0, [2.0])], steady=True)
    assert found["tokens_per_s"] == 0.5
    assert found["tpot_ms"] == {"p50": None, "p95": None}


def test_prompts_are_ordinary_and_always_the_same() -> None:
    manifest = fake_manifest(["a"], vocab=49152)
    first = prompts(manifest, 3, 50)
    assert first == prompts(manifest, 3, 50)
    assert len({*first}) == 3
    assert all(1000 <= token < 48152 for prompt in first for token in prompt)
    small = prompts(fake_manifest(["a"], vocab=4), 2, 200)
    assert {token for prompt in small for token in prompt} == {0, 1, 3}


def test_the_slow_stage_is_named() -> None:
    manifest = fake_manifest(["a", "b"])
    counters = {
        "a": Counters("a", 3.0, 7.0, 10, 5, 2.0, 1 << 20),
        "b": Counters("b", 9.0, 1.0, 10, 6, 7.0, 2 << 20, 6.5),
    }
    found = stage_figures(manifest, counters)
    assert [stage["busy"] for stage in found["stages"]] == [0.3, 0.9]
    assert found["bubble"] == pytest.approx(0.4)
    assert found["stages"][1] == {
        "pipeline": 0, "node": "b", "busy": 0.9, "wait": 0.1, "predicted_ms": 5.0, "measured_ms": 7.0, "own_ms": 6.5,
        "wire_bytes": 6, "peak_rss_bytes": 2 << 20, "throttled": None,
    }  # fmt: skip
    assert found["verdict"].startswith("stage 1 on b is the slowest: 7.00 ms a step against 5.00 ms predicted")


def test_every_stage_of_every_pipeline_is_told() -> None:
    manifest = fake_manifest(["a", "b", "c", "d"], pipelines=2)
    counters = {
        name: Counters(name, busy, 10.0 - busy, 10, 5, busy, 1)
        for name, busy in zip("abcd", (3.0, 4.0, 8.0, 9.0), strict=True)
    }
    found = stage_figures(manifest, counters)
    assert [(stage["pipeline"], stage["node"]) for stage in found["stages"]] == [(0, "a"), (0, "b"), (1, "c"), (1, "d")]
    assert found["bubble"] == pytest.approx((0.7 + 0.6 + 0.2 + 0.1) / 4)
    assert found["verdict"].startswith("stage 1 on d (pipeline 1) is the slowest: 9.00 ms a step against 5.00 ms")


def test_an_empty_pipeline_is_told_and_so_is_silence() -> None:
    manifest = fake_manifest(["a", "b"])
    idle = {name: Counters(name, 1.0, 1.0, 10, 5, 2.0, 1) for name in "ab"}
    assert "more streams" in stage_figures(manifest, idle)["verdict"]
    silent = stage_figures(manifest, {})
    assert silent["bubble"] is None
    assert silent["stages"][0]["busy"] is None
    assert "no stage" in verdict(silent["stages"])


def test_the_interval_is_students() -> None:
    found = interval([1.0, 2.0, 3.0])
    assert found["mean"] == 2.0
    assert found["high"] == pytest.approx(2.0 + 4.303 / 3**0.5)
    for freedom, quantile in ((16, 2.120), (30, 2.042), (120, 1.980)):
        values = [float(number % 2) for number in range(freedom + 1)]
        found = interval(values)
        assert found["high"] == pytest.approx(
            found["mean"] + quantile * statistics.stdev(values) / len(values) ** 0.5, abs=1e-3
        )
    assert interval([1.0]) == {"mean": 1.0, "low": None, "high": None}
    assert percentiles([]) == {"p50": None, "p95": None}


def test_a_sweep_takes_turns_and_one_run_stands_alone() -> None:
    asked: list[int] = []

    def once(streams: int) -> dict[str, object]:
        asked.append(streams)
        return {"streams": streams, "tokens_per_s": float(streams * len(asked))}

    found = sweep([1, 2], 2, once)
    assert asked == [1, 2, 1, 2]
    assert len(found["runs"]) == 4
    assert [mean["tokens_per_s"]["mean"] for mean in found["mean"]] == [2.0, 6.0]
    assert "runs" not in sweep([4], 1, once)
    assert sweep([4], 3, once)["mean"]["streams"] == 4


def test_a_decoder_is_driven_to_its_last_token() -> None:
    with driving(streams=4) as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        manifest = fake_manifest(["a", "b"])
        found = bench(driver, manifest, Work(4, 5, 9))
        assert found["tokens"] == 36
        assert found["streams"] == 4
        assert found["put_backs"] == 0
        assert len(found["stages"]) == 2
        longer = generate(driver, manifest, Work(2, 5, 3, seconds=0.2))
        assert len(longer) > 2
        assert all(len(line.tokens) == 3 for line in longer)


def test_put_backs_are_told() -> None:
    """Two want all of a context each, and there is space for one."""
    pool = Pool(6, 4)
    ring = FakeRing(pooled_workers(2, sequences=4, context=24, pool=pool), ["a", "b"])
    manifest = fake_manifest(["a", "b"])
    driver = Driver(manifest, ring, Engine(stages=2, context=24, streams=4, epoch=7, pool=pool))
    driver.start()
    try:
        ring.ready()
        assert driver.wait_ready(WAIT)
        found = bench(driver, manifest, Work(2, 3, 21))
        assert found["put_backs"] == driver.put_backs() > 0, "the warm-up has space for both"
        assert found["tokens"] == 42
    finally:
        driver.stop()


def test_what_does_not_fit_the_context_is_refused_and_not_cut_short() -> None:
    require_context(Work(1, 59, 5), 64)
    with pytest.raises(FitError, match="60 prompt tokens and 5 more"):
        require_context(Work(1, 60, 5), 64)


def test_a_lost_stage_ends_the_measurement() -> None:
    with driving() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        ring.hold = True
        ring.on_step = lambda: ring.inject(State("b", "lost", "gone"))
        with pytest.raises(UnreachableError, match="gone"):
            generate(driver, fake_manifest(["a", "b"]), Work(2, 5, 9))


def test_a_graph_is_measured_in_items() -> None:
    import numpy as np

    with graph() as (driver, ring):
        ring.ready()
        assert driver.wait_ready(WAIT)
        found = bench_graph(driver, fake_manifest(["a", "b"], "graph"), {"x": np.array([1])}, Work(3, 1, 5))
        assert found["items"] == 15
        assert found["id"] == fake_manifest(["a", "b"], "graph").id
        assert found["items_per_s"] > 0
        assert found["latency_ms"]["p50"] > 0


def test_the_head_of_a_graph_is_measured_over_http(tmp_path: Path) -> None:
    np.savez(tmp_path / "in.npz", x=np.array([1, 2]))
    words = ["bench", "--input", str(tmp_path / "in.npz"), "--streams", "1,3", "--max-tokens", "4", "--json"]
    with serving() as (url, ring, _):
        found = json.loads(CliRunner().invoke(cli, [*words, "--url", url]).stdout)
        assert [(run["streams"], run["items"]) for run in found["runs"]] == [(1, 4), (3, 12)]
        assert all(run["items_per_s"] > 0 and "HTTP" in run["verdict"] for run in found["runs"])
        assert len(ring.sent) == 4 + 12 + 2 * 2  # two calls to warm up before each
        for repeats, means in ((1, 0), (2, 2)):  # a single run is no mean of its own
            told = CliRunner().invoke(cli, [*words[:-1], "--repeats", str(repeats), "--url", url]).stdout
            lines = [line.partition(":")[0] for line in told.splitlines()]
            assert lines.count("1 stream") == lines.count("3 streams") == repeats
            assert sum(line.startswith("mean with ") for line in lines) == means
        np.savez(tmp_path / "in.npz", x=np.array([-1]))
        refused = CliRunner().invoke(cli, [*words, "--url", url]).exception
    assert isinstance(refused, InputError)
    assert "x is negative" in refused.message
