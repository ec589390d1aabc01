"""Which keys a query sees, as numbers that are added to its scores: the inputs ``mask.<window>`` of a decoder stage.

Where a back end has no paged attention, positions are no matter of lengths. A key may be of no use any more (a guess
that was rejected), or another sequence's, or not filled yet; and a query of a layer with a window sees only so many of
the last positions, itself among them. All that is one array ``[queries, keys]``: zero, or ``HIDDEN``. A stage has an
input for every window that its layers have, ``mask.0`` for those that see everything.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ruvrun.elements import Array

MASK = "mask."
HIDDEN = np.float32(-65504.0)
"""The lowest half float: its exponential is zero, and no device makes an infinity, or nothing, of it."""

NOTHING = -1
"""In place of the position of a key that is none."""


def window_masks(names: Iterable[str]) -> dict[str, int]:
    """The windows of a stage, by the names of their inputs; 0 for all."""
    return {name: int(name.removeprefix(MASK)) for name in names if name.startswith(MASK)}


def fill_mask(mask: Array, queries: Array, keys: Array, window: int) -> None:
    """Tell which of the keys each query sees.

    Args:
        mask: ``[queries, keys]`` float32, written.
        queries: positions ``[queries]``.
        keys: positions ``[keys]``, or ``NOTHING``.
        window: how many positions a query sees, itself the last of them; 0 for all.
    """
    first = queries[:, None] - window if window else NOTHING
    seen = (keys <= queries[:, None]) & (keys > np.maximum(first, NOTHING))
    mask[:] = np.where(seen, np.float32(0), HIDDEN)
