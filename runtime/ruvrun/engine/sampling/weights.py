"""Logits to weights, and one of them drawn.

**Weights are integers.** A token's weight is its probability relative to the best token's, in units of 2^-30.
Sums of integers do not depend on the order of adding, so what a filter keeps is exactly what a full sort would keep,
however it is found; and a token is drawn by comparing integers. A token less than a billionth as likely as the best
one has weight 0 and is never drawn.

**The draw** is a function of the request's seed and the position of the token it picks: Philox2x64-10, a counter-based
generator (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011); the seed is the key, the position the
counter. So a request gets the same tokens alone or in company, and again when its steps are replayed. It is written out
here because ten rounds on Python's integers take a tenth of the time in which numpy makes a generator of its own for
each token, and give the same bits with any version of anything.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

ONE = 2**30
"""The weight of the best token."""

_SCALE = np.float32(ONE)
_WORD = 2**64
_BLOCK = 256
_FEW = 8192  # so many are summed up one by one sooner than in blocks

Weights = npt.NDArray[np.int32]


class Room:
    """Where the weights of a row are made, each in place of the number it is made of. Row after row in one place, it
    stays in the core's own cache; and kept from step to step, the kernel need not find new pages for it.
    """

    __slots__ = ("floats", "weights")

    def __init__(self) -> None:
        self.fit(0)

    def fit(self, vocab: int) -> None:
        """Be for so many tokens."""
        self.floats = np.empty(vocab, np.float32)
        self.weights: Weights = self.floats.view(np.int32)


def weigh(row: npt.NDArray[np.float32], peak: np.float32, temperature: float, room: Room | None = None) -> Weights:
    """Integer weights ``[vocab]``: exp((logit - peak) / temperature) in units of 2^-30, rounded down.

    They are the room's, until it is used again.
    """
    room = room or Room()
    if room.floats.size != row.size:
        room.fit(row.size)
    scaled = room.floats
    with np.errstate(over="ignore", under="ignore"):  # far below the best, at a low temperature: weight 0
        np.subtract(row, peak, out=scaled)
        if temperature != 1:
            scaled *= np.float32(1 / temperature)
        np.exp(scaled, out=scaled)
        scaled *= _SCALE
    np.copyto(room.weights, scaled, casting="unsafe")
    return room.weights


def draw(seed: int, position: int) -> int:
    """64 random bits for the token at ``position`` of a sequence with this ``seed``."""
    return philox(position % _WORD, 0, seed % _WORD)[0]


def philox(left: int, right: int, key: int) -> tuple[int, int]:
    """Philox2x64-10: two words of 64 bits, from a counter of two words and a key of one."""
    for _ in range(10):
        product = 0xD2B74407B1CE6E93 * left
        left, right = (product >> 64) ^ key ^ right, product % _WORD
        key = (key + 0x9E3779B97F4A7C15) % _WORD
    return left, right


def choose(weights: Weights, bits: int) -> int:
    """The index at ``bits / 2^64`` of the way through the weights."""
    if weights.size <= _FEW:
        upto = weights.cumsum(dtype=np.int64)
        return int(upto.searchsorted(int(upto[-1]) * bits // _WORD, side="right"))
    # The same in two steps, first the block and then the place in it: half the work of one long cumulative sum.
    upto = np.add.reduceat(weights, np.arange(0, weights.size, _BLOCK), dtype=np.int64).cumsum()
    point = int(upto[-1]) * bits // _WORD
    block = int(upto.searchsorted(point, side="right"))
    before = int(upto[block - 1]) if block else 0
    inside = weights[block * _BLOCK : (block + 1) * _BLOCK].cumsum(dtype=np.int64)
    return block * _BLOCK + int(inside.searchsorted(point - before, side="right"))
