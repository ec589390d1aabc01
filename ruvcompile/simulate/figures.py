"""What a simulation found, in figures: the ``simulation`` of ``plan --simulate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ruvcompile.forecast import Forecast
from ruvcompile.simulate.load import Load
from ruvcompile.simulate.nouns import Outcome


def figures(forecast: Forecast, load: Load, outcome: Outcome) -> dict[str, Any]:
    """The JSON object, but for how many nodes may be away.

    ``ttft_ms`` is from when a request is made to its first token, ``tpot_ms`` per request the mean time from token to
    token after the first, ``put_backs`` how often a sequence was put back as space ran out, ``busy`` the share of the
    time in which a stage works, and ``bubble`` the mean share in which stages stand idle, while all users are there.
    """
    made = [*outcome.finished, *outcome.lost]
    elapsed_ms = max(outcome.full_ms, 1e-9)
    busy = [[ms / elapsed_ms for ms in pipeline] for pipeline in outcome.busy_ms]
    found: dict[str, Any] = {
        "is": f"a simulation, from {forecast.cost_source} costs",
        **({"users": load.users, "think_s": load.think_ms / 1e3} if load.users else {"requests_per_s": load.rate}),
        "requests": len(made),
        "lost": len(outcome.lost),
        "begun_again": sum(job.retries for job in made),
        "seconds": round(outcome.end_ms / 1e3, 3),
    }
    if forecast.decoder:
        found |= {
            "prompt_tokens": load.prompt.mean,
            "max_tokens": load.answer.mean,
            "spread": load.answer.spread,
            "context": forecast.context,
            "ttft_ms": _percentiles(waits(outcome)),
            "tpot_ms": _percentiles(paces(outcome)),
            "tokens_per_s": round(1e3 * outcome.tokens / elapsed_ms, 3),
            "put_backs": outcome.put_backs,
        }
    else:
        found |= {
            "latency_ms": _percentiles(waits(outcome)),
            "items_per_s": round(1e3 * outcome.tokens / elapsed_ms, 3),
        }
    stages = [
        {"pipeline": number, "node": stage.node, "busy": round(share, 4)}
        for number, (pipeline, shares) in enumerate(zip(forecast.pipelines, busy, strict=True))
        for stage, share in zip(pipeline.stages, shares, strict=True)
    ]
    return found | {
        "stages": stages,
        "bubble": round(1 - float(np.mean([stage["busy"] for stage in stages])), 4),
        "head_busy": round(outcome.head_ms / elapsed_ms, 4),
        "seed": load.seed,
    }


def waits(outcome: Outcome) -> list[float]:
    """Of each request that was served, ms to its first token (of a graph: to its result)."""
    return [job.first - job.arrived for job in outcome.finished if job.first is not None]


def paces(outcome: Outcome) -> list[float]:
    """Of each request with two tokens or more, the mean ms from token to token."""
    return [
        (job.done - job.first) / (job.answer - 1)
        for job in outcome.finished
        if job.answer > 1 and job.done is not None and job.first is not None
    ]


def percentile(values: Sequence[float], share: float) -> float:
    """Infinite of nothing: where nothing is served, nobody is served in time."""
    return float(np.percentile(values, share)) if values else float("inf")


def _percentiles(values: Sequence[float]) -> dict[str, float | None]:
    if not values:
        return {"p50": None, "p95": None}
    return {f"p{share}": round(percentile(values, share), 3) for share in (50, 95)}
