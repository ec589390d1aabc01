"""What happens to a simulated fleet, and what became of its users."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ruvcompile.simulate.turns import Job


@dataclass(frozen=True)
class Absence:
    """A node that is away from ``start_ms`` to ``end_ms``; for good where nothing is said."""

    node: str
    start_ms: float = 0.0
    end_ms: float = math.inf


@dataclass(frozen=True)
class Outcome:
    """What happened.

    ``finished`` and ``lost`` are all requests that were made, the last of which ended at ``end_ms``. What was done in
    all is told up to ``full_ms``, when the last request was given out and fewer and fewer were left to ask (up to the
    end where all are given out at the beginning): ``tokens`` that came, ``steps`` that were sent, ``busy_ms``, the work
    of each stage, pipeline by pipeline, and ``head_ms``, that of the head. ``put_backs`` is how often a sequence was
    put back as space ran out.
    """

    finished: tuple[Job, ...]
    lost: tuple[Job, ...]
    end_ms: float
    full_ms: float
    tokens: int
    steps: int
    busy_ms: tuple[tuple[float, ...], ...]
    head_ms: float
    put_backs: int
