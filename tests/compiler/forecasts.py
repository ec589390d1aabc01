"""Forecasts made by hand, for tests of what reads them."""

from __future__ import annotations

from ruvcompile.forecast import Curve, Forecast, HopForecast, PipelineForecast, StageForecast
from ruvcompile.simulate import Lengths, Load

NOTHING = Curve(((1, 0.0),))
NEAR = HopForecast(0.0, 0.0, 0)


def line(fixed: float, each: float) -> Curve:
    """``fixed`` ms and ``each`` ms for every row or token."""
    return Curve(((0, fixed), (1, fixed + each)))


def pipeline(*steps: Curve, chunks: Curve = NOTHING, hop: HopForecast = NEAR, name: str = "node") -> PipelineForecast:
    """One stage for each of ``steps``, on nodes ``name-0``, ``name-1``, ..., the same hop everywhere."""
    stages = tuple(StageForecast(f"{name}-{number}", step, chunks) for number, step in enumerate(steps))
    return PipelineForecast(stages, (hop,) * (len(steps) + 1))


def fleet(
    *pipelines: PipelineForecast, head: Curve = NOTHING, head_node: str = "head", streams: int = 8, chunk: int = 256
) -> Forecast:
    """A decoder's fleet, its head on a node of its own."""
    return Forecast(pipelines, head_node, head, True, streams, 4096, chunk)


def together(users: int, answer: int, prompt: int = 1) -> Load:
    """``users`` equal requests at once."""
    return Load(users, Lengths(prompt), Lengths(answer), users=users)
