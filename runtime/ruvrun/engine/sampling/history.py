"""What penalties need: which tokens a sequence has, and how often each was generated.

As in vLLM and OpenAI's API:

* ``repetition_penalty`` r (Keskar et al. 2019): a logit above 0 is divided by r, another multiplied, for every token
  of the prompt or the answer so far, once however often it is there;
* ``frequency_penalty`` f and ``presence_penalty`` p: a logit loses f for each time that its token was generated, and p
  if it was at all. The prompt does not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ruvrun import frames

Told = tuple[bytes, tuple[tuple[int, int], ...]]
NOTHING: Told = (b"", ())


def penalises(sampling: frames.Sampling) -> bool:
    """Whether any penalty is asked for."""
    return sampling.repetition_penalty != 1 or bool(sampling.presence_penalty or sampling.frequency_penalty)


def told(sampling: frames.Sampling, prompt: Sequence[int], generated: Sequence[int]) -> Told:
    """What the last stage must be told of a sequence when it is opened, where a penalty needs it.

    Returns:
        The tokens of the prompt as a bit each, from token 0 in the highest bit of the first byte to the highest of
        them; and each token that was generated before, with its count.
    """
    if not penalises(sampling):
        return NOTHING
    bits = b""
    if sampling.repetition_penalty != 1 and prompt:
        there = np.zeros(max(prompt) + 1, np.bool_)
        there[list(prompt)] = True
        bits = np.packbits(there).tobytes()
    return bits, tuple(sorted(Counter(generated).items()))


class History:
    """The tokens of one sequence.

    They lie in arrays that grow, in the order in which they came first, so that a step costs what the distinct tokens
    cost and not the vocabulary, and no list is made an array again.

    Args:
        sampling: how much each penalty is.
        prompt, generated: as ``told`` packs them.
    """

    __slots__ = ("_counts", "_frequency", "_ids", "_picked", "_presence", "_prompted", "_repetition", "_where")

    def __init__(self, sampling: frames.Sampling, prompt: bytes, generated: Sequence[tuple[int, int]]) -> None:
        self._repetition = sampling.repetition_penalty
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._ids = np.flatnonzero(np.unpackbits(np.frombuffer(prompt, np.uint8)))
        self._counts = np.zeros(self._ids.size, np.int64)
        self._prompted = np.ones(self._ids.size, np.bool_)
        self._where = {token: at for at, token in enumerate(self._ids.tolist())}
        self._picked: list[tuple[int, int]] = []
        for token, count in generated:
            self._count(token, count)

    @property
    def highest(self) -> int:
        """The highest token; -1 when there is none."""
        return max(self._where, default=-1)

    def add(self, token: int, position: int) -> None:
        """``token`` was picked for ``position``, which is behind those before."""
        self._count(token, 1)
        self._picked.append((position, token))

    def rewind(self, position: int) -> None:
        """Forget what was picked for ``position`` and those behind it."""
        while self._picked and self._picked[-1][0] >= position:
            _, token = self._picked.pop()
            self._counts[self._where[token]] -= 1

    def penalise(self, row: npt.NDArray[np.float32]) -> None:
        """Change the logits ``[vocab]`` of the tokens that are here."""
        size = len(self._where)
        ids, counts = self._ids[:size], self._counts[:size]
        generated = counts > 0
        logits = row[ids].astype(np.float64)
        if self._repetition != 1:
            lower = np.where(logits > 0, logits / self._repetition, logits * self._repetition)
            logits = np.where(generated | self._prompted[:size], lower, logits)
        row[ids] = logits - self._frequency * counts - self._presence * generated

    def _count(self, token: int, more: int) -> None:
        at = self._where.setdefault(token, len(self._where))
        if at == self._ids.size:
            grown = 64 + at
            self._ids, self._counts, self._prompted = (
                np.concatenate([held, np.zeros(grown, held.dtype)])
                for held in (self._ids, self._counts, self._prompted)
            )
        self._ids[at] = token
        self._counts[at] += more
