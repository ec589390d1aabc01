"""Drives the engine without HTTP, or the head of a graph with it, and says what the pipeline did: throughput, latency,
and which stage is slow.

What the figures mean:

- A request's prompt is made of ordinary token ids drawn with a fixed seed; end-of-text tokens do not end it,
  so every request yields exactly ``max_tokens``.
- ``tokens_per_s`` is decode throughput with all streams at work: tokens that arrived after every stream had its
  first and before any had its last, per second. Where there is no such time (very short answers, or
  ``--seconds``, where streams begin again and again), it is all tokens over all time.
- ``ttft_ms`` is from handing a request in to its first token; ``tpot_ms`` is, per request, the mean time from
  token to token after the first.
- ``put_backs`` is how often a sequence was put back as space ran out, whose tokens were then computed again.
- A stage's ``busy`` and ``wait`` are shares of the time between its first and last step; ``bubble`` is the mean
  share in which stages stood idle. ``measured_ms`` is the median step by the clock, ``own_ms`` what
  its thread worked of it, ``predicted_ms`` the plan's, of as many rows as these streams make.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ruvrun.bench.stages import stage_figures
from ruvrun.engine import Lost, Request
from ruvrun.errors import FitError, RuvError, UnreachableError
from ruvrun.executors import Array
from ruvrun.frames import Sampling
from ruvrun.manifest import Manifest
from ruvrun.pipeline.driver import Driver, Event

GREEDY = Sampling(temperature=0.0, top_p=1.0, seed=0)
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom.
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)


@dataclass(frozen=True)
class Work:
    """One measurement: ``streams`` requests at a time, once, or again and again for ``seconds``."""

    streams: int
    prompt_tokens: int
    max_tokens: int
    seconds: float | None = None


@dataclass
class Timeline:
    """When a request was handed in, and when each of its tokens came (seconds, monotonic)."""

    began: float
    tokens: list[float] = field(default_factory=list)


def require_context(work: Work, context: int) -> None:
    """Refuse prompts and answers (FitError) that are together longer than the ``context`` that is served."""
    if work.prompt_tokens + work.max_tokens > context:
        raise FitError(
            "context-short",
            f"{work.prompt_tokens} prompt tokens and {work.max_tokens} more do not fit the context of {context}",
            hint="lower --prompt-tokens or --max-tokens, or raise --context",
        )


def bench(driver: Driver, manifest: Manifest, work: Work) -> dict[str, Any]:
    """One measurement of a decoder, after a short warm-up; returns the JSON of ``ruvrun bench``.

    Raises:
        UnreachableError: a stage was lost on the way.
    """
    generate(driver, manifest, Work(work.streams, min(16, work.prompt_tokens), min(4, work.max_tokens)))
    driver.counters(reset=True)
    before = driver.put_backs()
    timelines = generate(driver, manifest, work)
    counters = driver.counters()
    return {
        **figures(timelines, steady=work.seconds is None),
        "streams": work.streams,
        "prompt_tokens": work.prompt_tokens,
        "put_backs": driver.put_backs() - before,
        **stage_figures(manifest, counters, work.streams),
        "accepted_per_step": None,
    }


def bench_graph(driver: Driver, manifest: Manifest, tensors: Mapping[str, Array], work: Work) -> dict[str, Any]:
    """As ``bench``, for a graph: ``work.streams`` callers, each with one call in flight, ``work.max_tokens`` calls
    each or for ``work.seconds``.
    """
    for _ in range(2):
        driver.run(tensors)
    driver.counters(reset=True)
    found = repeat(lambda: driver.run(tensors), work)
    return {**found, **stage_figures(manifest, driver.counters(), work.streams)}


def bench_head(run: Callable[[], object], work: Work) -> dict[str, Any]:
    """As ``bench_graph``, with calls of a head that runs elsewhere: HTTP and the way there are part of the figures, and
    what each stage did is not known here.
    """
    for _ in range(2):
        run()
    why = "measured over HTTP, which is part of the figures; what each stage did is not known here"
    return {**repeat(run, work), "stages": [], "bubble": None, "verdict": why}


def repeat(run: Callable[[], object], work: Work) -> dict[str, Any]:
    """Throughput and latencies of ``run``, called by ``work.streams`` threads. What one of them raises ends all."""
    began = time.monotonic()
    until = began + work.seconds if work.seconds is not None else None
    latencies: list[float] = []
    errors: list[BaseException] = []

    def caller() -> None:
        try:
            done = 0
            while not errors and (time.monotonic() < until if until is not None else done < work.max_tokens):
                start = time.monotonic()
                run()
                latencies.append(time.monotonic() - start)
                done += 1
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits for us
            errors.append(error)

    threads = [threading.Thread(target=caller) for _ in range(work.streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    elapsed = time.monotonic() - began
    return {
        "items_per_s": len(latencies) / elapsed,
        "latency_ms": percentiles([value * 1e3 for value in latencies]),
        "streams": work.streams,
        "items": len(latencies),
    }


def prompts(manifest: Manifest, count: int, length: int) -> list[tuple[int, ...]]:
    """``count`` prompts of ``length`` ordinary token ids each, the same in every run.

    Special tokens stand at the ends of a vocabulary, so those ends are left out where it is large enough.
    """
    vocab = manifest.program.vocab
    margin = 1000 if vocab >= 8000 else 0
    ordinary = np.setdiff1d(np.arange(margin, vocab - margin), np.array(manifest.program.eos, dtype=np.int64))
    draws = np.random.default_rng(20240229).choice(ordinary, size=(count, length))
    return [tuple(int(token) for token in row) for row in draws]


def generate(driver: Driver, manifest: Manifest, work: Work) -> list[Timeline]:
    """Run the requests of ``work`` to their ends and return when their tokens came."""
    texts = prompts(manifest, work.streams, work.prompt_tokens)
    timelines: list[Timeline] = []
    finished = threading.Semaphore(0)
    lost: list[str] = []
    until = time.monotonic() + (work.seconds or 0.0)

    def again(text: tuple[int, ...]) -> None:
        try:
            begin(text)
        except RuvError as error:
            lost.append(error.message)
            finished.release()

    def begin(text: tuple[int, ...]) -> None:
        timeline = Timeline(time.monotonic())
        timelines.append(timeline)
        request = Request(driver.next_id(), text, work.max_tokens, GREEDY, frozenset())

        def hear(event: Event) -> None:
            now = time.monotonic()
            if isinstance(event, Lost):
                lost.append(event.why)
                finished.release()
                return
            timeline.tokens.append(now)
            if event.finish is not None:
                again(text) if now < until else finished.release()

        driver.submit(request, hear)

    for text in texts:
        begin(text)
    for _ in texts:
        finished.acquire()
    if lost:
        raise UnreachableError("stage-lost", lost[0], hint="see `ruvrun status`, then measure again")
    return timelines


def figures(timelines: Sequence[Timeline], *, steady: bool) -> dict[str, Any]:
    """Throughput and latencies of finished requests."""
    firsts, lasts = [line.tokens[0] for line in timelines], [line.tokens[-1] for line in timelines]
    count = sum(len(line.tokens) for line in timelines)
    start, end = max(firsts), min(lasts)
    inside = sum(start < when <= end for line in timelines for when in line.tokens)
    overall = max(lasts) - min(line.began for line in timelines)
    rate = inside / (end - start) if steady and inside else count / overall
    paces = [(line.tokens[-1] - line.tokens[0]) / (len(line.tokens) - 1) for line in timelines if len(line.tokens) > 1]
    return {
        "tokens_per_s": rate,
        "ttft_ms": percentiles([(line.tokens[0] - line.began) * 1e3 for line in timelines]),
        "tpot_ms": percentiles([pace * 1e3 for pace in paces]),
        "tokens": count,
    }


def percentiles(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 95th percentile; None of nothing."""
    if not values:
        return {"p50": None, "p95": None}
    return {"p50": float(np.percentile(values, 50)), "p95": float(np.percentile(values, 95))}


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Mean and its 95 % interval (Student's t); the interval of a single value is unknown."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": None, "high": None}
    freedom = len(values) - 1
    # Beyond the table, the expansion around the normal distribution's quantile is right to three decimals.
    t = _T95[freedom - 1] if freedom <= len(_T95) else 1.95996 + 2.3723 / freedom + 2.8225 / freedom**2
    half = t * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def sweep(streams: Sequence[int], repeats: int, once: Callable[[int], dict[str, Any]]) -> dict[str, Any]:
    """Measure each number of streams ``repeats`` times, in turn, so that a machine that slows down slows all; one that
    is named twice is measured twice as often.

    One measurement is returned as it is; several as ``runs``, with a mean for each number of streams.
    """
    runs = [once(count) for _ in range(repeats) for count in streams]
    if len(runs) == 1:
        return runs[0]
    name = "tokens_per_s" if "tokens_per_s" in runs[0] else "items_per_s"
    means = [
        {"streams": count, name: interval([run[name] for run in runs if run["streams"] == count])}
        for count in dict.fromkeys(streams)
    ]
    return {"runs": runs, "mean": means[0] if len(means) == 1 else means}
