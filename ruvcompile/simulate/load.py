"""What a simulated service is asked: who asks, how often, and how long prompts and answers are. Drawn from a seed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from ruvcompile.forecast import Forecast


@dataclass(frozen=True)
class Lengths:
    """Tokens of a prompt or an answer: log-normal about ``mean`` with ``spread`` times it as standard deviation.

    Lengths of real prompts and answers have a long tail on one side only, as this distribution has. Spread 0: all are
    ``mean`` tokens long.
    """

    mean: float
    spread: float = 0.0

    def draw(self, random: np.random.Generator, count: int) -> list[int]:
        """``count`` lengths, each at least 1."""
        if not self.spread:
            return [max(1, round(self.mean))] * count
        variance = math.log1p(self.spread**2)
        drawn = random.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), count)
        return [max(1, round(each)) for each in drawn.tolist()]


@dataclass(frozen=True)
class Load:
    """``requests`` requests in all, from ``users`` people or at a ``rate``; one of the two is given.

    Attributes:
        requests: how many are made before the simulation ends.
        prompt, answer: their lengths; a call of a graph has none of either.
        users: each asks, reads the answer, thinks for an exponential time of mean ``think_ms``, and asks again; they
            begin at moments spread like their thinking.
        rate: requests per second of a Poisson process: from more people than could wait for one another.
        seed: of everything that is drawn.
    """

    requests: int
    prompt: Lengths = Lengths(512)
    answer: Lengths = Lengths(128)
    users: int = 0
    think_ms: float = 0.0
    rate: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        assert self.requests >= 1
        assert (self.users > 0) != (self.rate > 0), "either users or a rate"


@dataclass(frozen=True)
class Draws:
    """What chance decided, request by request: ``arrivals`` in ms for a rate, else ``pauses`` before each request."""

    prompts: list[int]
    answers: list[int]
    arrivals: list[float]
    pauses: list[float]


def draw(load: Load, forecast: Forecast) -> Draws:
    """Draw everything at once, so that what happens in the fleet has no influence on it.

    A prompt leaves room for one token in the context at least; an answer ends where the context does.
    """
    random = np.random.default_rng(load.seed)
    count = load.requests
    prompts, answers = load.prompt.draw(random, count), load.answer.draw(random, count)
    if forecast.decoder:
        prompts = [max(1, min(each, forecast.context - 1)) for each in prompts]
        answers = [min(each, forecast.context - prompt) for each, prompt in zip(answers, prompts, strict=True)]
    else:
        prompts, answers = [0] * count, [1] * count
    if load.rate:
        return Draws(prompts, answers, np.cumsum(random.exponential(1e3 / load.rate, count)).tolist(), [])
    pauses = random.exponential(load.think_ms, count).tolist() if load.think_ms else [0.0] * count
    return Draws(prompts, answers, [], pauses)
