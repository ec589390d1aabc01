"""Key/value space in blocks: how much of it there is, for the head that deals it out and the stages that hold it alike.

Where a back end takes a list of blocks for each sequence, its space need not be divided by sequences: all share one
pool, of as many positions as were planned (``streams`` sequences of ``context`` each), and one that is short leaves to
others what it does not use. So more sequences than ``streams`` can be at work. How many more is bounded, as each makes
everybody's step longer: OpenVINO decodes 275 tokens a second with 4 rows, 491 with 16 and 552 with 32 (SmolLM2-135M on
a core). Up to ``MOST`` rows the gain is worth the longer step; and ``SHARING`` times as many as were planned are at
work when sequences use a quarter of the context on the average, which most conversations do not reach.

A pipeline has a pool where all its stages do. Beside a stage of slots it would never be short: whoever has a slot has a
whole context there, and blocks for one here.
"""

from __future__ import annotations

from typing import NamedTuple

BLOCK = 32
"""Positions of a block: OpenVINO's on a CPU; and those in which beginnings of prompts are known again everywhere."""

SHARING, MOST = 4, 32


class Pool(NamedTuple):
    """So many ``blocks`` of ``size`` positions each."""

    blocks: int
    size: int


def pool_of(context: int, streams: int) -> Pool:
    """The pool of a stage that was planned for ``streams`` sequences of ``context`` positions."""
    return Pool(streams * -(-context // BLOCK), BLOCK)


def sequences_of(streams: int) -> int:
    """How many sequences may share such a pool at a time."""
    return max(streams, min(SHARING * streams, MOST))
