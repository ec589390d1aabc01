"""From logits to tokens, on the last stage: what a request asked for, and nothing of whom it shares the step with.

For each row, in this order:

1. **Bias.** ``logit_bias`` is added to the logits it names.
2. **Penalties** (``history.py``), on the logits too: repetition, then frequency and presence.
3. **Greedy** ends here: the largest logit, of equals the lowest id.
4. **Temperature** makes weights of logits (``weights.py``).
5. **top_k**, then **top_p** of what that leaves, then **min_p** (``choice.py``).
6. **The draw** (``weights.py``): random bits that depend on seed and position only.

Bias before penalties and temperature before the filters is what vLLM does, so that settings carry over. So does 5 for
top_k and top_p; min_p comes last as in llama.cpp and transformers, since it compares with the best token alone and
top_p would otherwise be a share of less. Bias and penalties are small changes of few logits and are made on a copy of
the row, which only a request that asks for them pays for.

**Log-probabilities** (``scores.py``) are of the model, not of the choice: log-softmax of the raw logits, before all of
the above, as OpenAI's and vLLM's are by default.

**What a request's tokens depend on**: its own logits, its parameters, and the tokens before them. A ``Sampler``
remembers those of one sequence where a penalty needs them: what the head told once, and what was picked here since. A
step at an earlier position takes back what was picked from there on, so that it picks the same again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ruvrun import frames
from ruvrun.engine.sampling.choice import keep
from ruvrun.engine.sampling.history import History, penalises, told
from ruvrun.engine.sampling.scores import score
from ruvrun.engine.sampling.weights import Room, choose, draw, weigh
from ruvrun.errors import IntegrityError

__all__ = ["GREEDY_BELOW", "Room", "Sampler", "best", "pick", "score", "told"]

GREEDY_BELOW = 1e-5  # a division by less overflows; as in vLLM it means greedy


class Sampler:
    """How one sequence picks its tokens, and what it must remember for that.

    Args:
        sampling: what was asked; a temperature below 1e-5 is greedy.
        vocab: token ids lie below it.
        prompt: the prompt's tokens, as ``told`` packs them; empty where no penalty needs them.
        generated: tokens that were generated before, and how often each.

    Raises:
        IntegrityError: a token id is none of this model's, or a number is none.
    """

    __slots__ = ("_bias", "_biased", "_history", "greedy", "plain", "sampling", "scores", "shapes")

    def __init__(
        self,
        sampling: frames.Sampling,
        vocab: int,
        prompt: bytes = b"",
        generated: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.sampling = sampling
        self.greedy = sampling.temperature < GREEDY_BELOW
        self.scores = sampling.logprobs >= 0
        self._biased = np.array([token for token, _ in sampling.logit_bias], np.int64)
        self._bias = np.array([bias for _, bias in sampling.logit_bias], np.float64)
        self._history = History(sampling, prompt, generated) if penalises(sampling) else None
        self.shapes = bool(self._history or sampling.logit_bias)
        # Takes the largest logit, and nobody wants to know more.
        self.plain = self.greedy and not (self.shapes or self.scores)
        penalties = (sampling.repetition_penalty, sampling.presence_penalty, sampling.frequency_penalty)
        numbers = (*self._bias, sampling.temperature, sampling.top_p, sampling.min_p, *penalties)
        named = max(self._biased.max(initial=-1), self._history.highest if self._history else -1)
        if named >= vocab or not all(map(math.isfinite, numbers)) or sampling.repetition_penalty <= 0:
            raise IntegrityError(
                "sampling-wrong",
                f"a sequence was opened with a token or a number that no request can have ({sampling})"[:500],
                hint="all nodes must run the same build and version",
            )

    def shape(self, row: npt.NDArray[np.float32], position: int) -> npt.NDArray[np.float32]:
        """Bias and penalties on a copy of the logits ``[vocab]`` of the token at ``position``."""
        row = row.copy()
        row[self._biased] += self._bias
        if self._history:
            self._history.rewind(position)
            self._history.penalise(row)
        return row

    def note(self, token: int, position: int) -> None:
        """Remember what was picked."""
        if self._history:
            self._history.add(token, position)


def best(logits: npt.NDArray[np.float32]) -> list[int]:
    """The largest logit of each row ``[vocab]``, of equals the lowest id.

    Raises:
        IntegrityError: a row's largest logit is not a finite number.
    """
    tokens: list[int] = logits.argmax(axis=1).tolist()
    _demand_finite(sum(map(logits.item, range(len(tokens)), tokens)))  # float64 holds any sum of these
    return tokens


def pick(
    logits: npt.NDArray[np.float32], samplers: Sequence[Sampler], positions: Sequence[int], room: Room | None = None
) -> list[int]:
    """One token for each row.

    Args:
        logits: ``[rows, vocab]`` float32; they stay as they are.
        samplers: per row, its sequence's own.
        positions: per row, the position that the new token will have in its sequence.
        room: the caller's own, where weights are made.

    Raises:
        IntegrityError: a row's largest logit is not a finite number.
    """
    tokens: list[int] = []
    room = room or Room()
    # Row by row from the first look on: a row fits the core's own cache, and all of them do not.
    for row, sampler, position in zip(logits, samplers, positions, strict=True):
        token = int(row.argmax())
        _demand_finite(row.item(token))
        if sampler.shapes:
            row = sampler.shape(row, position)
            token = int(row.argmax())
        if not sampler.greedy:
            sampling = sampler.sampling
            ids, weights = keep(weigh(row, row[token], sampling.temperature, room), sampling)
            token = choose(weights, draw(sampling.seed, position))
            if ids is not None:
                token = int(ids[token])
        tokens.append(token)
        if sampler.shapes:
            sampler.note(token, position)
    return tokens


def _demand_finite(largest: float) -> None:
    """Of logits of which some are not numbers, the largest is none: argmax finds a NaN first.

    Raises:
        IntegrityError: it is none.
    """
    if not math.isfinite(largest):
        raise IntegrityError(
            "logits-not-finite", "the last stage computed logits that are not numbers", hint="verify the build"
        )
