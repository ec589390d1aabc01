"""Where a decoder's stage is measured: how many sequences, how many tokens of each, behind how many others."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from ruvrun.bundle import StageSpec
from ruvrun.executors import Span

ROWS = (1, 2, 4, 8)
MORE_ROWS = (16, 32)
"""Where steps will be of more rows than those: so many are needed for each, and few have them."""
DEPTHS = (16, 256, 1024)
CHUNKS = (32, 128, 256)
STATE_BYTES = 768 << 20
"""Of key/value space that is filled at most."""

_SPARE = 32


class Place(NamedTuple):
    """What is run: so many sequences with so many tokens each, behind so many others."""

    rows: int
    tokens: int
    depth: int

    @property
    def spans(self) -> list[Span]:
        """The step."""
        return [Span(slot, self.depth, self.tokens, 1) for slot in range(self.rows)]


class Ground(NamedTuple):
    """Where a stage is measured: the places, the one that stands for all, and the key/value space they need."""

    places: tuple[Place, ...]
    usual: Place
    chunk: Place
    slots: int
    context: int

    @property
    def filled(self) -> int:
        """Positions of every slot that steps look back at."""
        return max(place.depth for place in self.places)


def ground(spec: StageSpec, context: int, rows: int = 0) -> Ground:
    """The places at which a stage of a model with so many positions is measured; less of all where they are few.

    Args:
        rows: of the largest step there will be, where it is more than is measured anyway.
    """
    per_token = spec.kv.bytes_per_token if spec.kv is not None else 0
    wanted = [*ROWS, *(more for last, more in pairwise((ROWS[-1], *MORE_ROWS)) if rows > last)]
    slots = wanted[-1] if not spec.exported else 2
    while slots > 1 and per_token * slots * DEPTHS[0] > STATE_BYTES:
        slots //= 2
    most = min(context - 1, STATE_BYTES // max(1, per_token * slots) - _SPARE)
    # Where the context is short, half of it stands for all, and its end for what is deep.
    usual = max(0, min(DEPTHS[1], context // 2, most))
    depths = sorted({min(DEPTHS[0], usual), usual, max(usual, min(DEPTHS[2], most))})
    chunks = sorted({max(2, min(chunk, context)) for chunk in CHUNKS}) if context > 1 else []
    steps = [Place(rows, 1, depth) for depth in depths for rows in wanted if rows <= slots]
    prompts = [Place(1, chunk, 0) for chunk in chunks]
    late = min(depths[-1], context - chunks[0]) if chunks else 0
    if late > 0:
        prompts.append(Place(1, chunks[0], late))
    common = Place(1, 1, usual)
    chunk = prompts[min(1, len(chunks) - 1)] if prompts else common
    longest = max(place.depth + place.tokens for place in (*steps, *prompts))
    return Ground((*steps, *prompts), common, chunk, slots, longest)
