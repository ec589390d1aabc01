"""Prometheus' text format."""

from __future__ import annotations

import pytest

from ruvrun.metrics import Counter, Gauge, render


def test_text_format() -> None:
    requests = Counter("requests_total", "Requests.", ("path", "status"))
    requests.add(1, "/b", "200")
    requests.add(2, "/a", "200")
    requests.add(1, "/b", "200")
    seconds = Counter("seconds_total", "Line\nbreak and \\.")
    seconds.add(0.25)
    running = Gauge("running", "Now.")
    running.set(3)
    running.add(-1)
    assert render([requests, seconds, running]) == (
        "# HELP requests_total Requests.\n"
        "# TYPE requests_total counter\n"
        'requests_total{path="/a",status="200"} 2\n'
        'requests_total{path="/b",status="200"} 2\n'
        "# HELP seconds_total Line\\nbreak and \\\\.\n"
        "# TYPE seconds_total counter\n"
        "seconds_total 0.25\n"
        "# HELP running Now.\n"
        "# TYPE running gauge\n"
        "running 2\n"
    )


def test_untouched_metrics() -> None:
    lines = render([Counter("a", "A."), Counter("b", "B.", ("x",))]).splitlines()
    assert "a 0" in lines
    assert not any(line.startswith("b") for line in lines)


def test_label_values_are_quoted() -> None:
    gauge = Gauge("g", "G.", ("why",))
    gauge.set(1, 'say "no"\\\n')
    assert render([gauge]).splitlines()[-1] == 'g{why="say \\"no\\"\\\\\\n"} 1'


def test_a_counter_only_rises_and_labels_must_match() -> None:
    counter = Counter("c", "C.", ("x",))
    with pytest.raises(AssertionError):
        counter.add(-1, "a")
    with pytest.raises(AssertionError):
        counter.add(1)
