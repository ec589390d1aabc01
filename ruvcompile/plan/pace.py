"""How fast a pipeline is with so many sequences, from the times of its parts. Pure arithmetic.

The engine (``ruvrun.engine.scheduler``) divides S sequences into as many steps as there are stages, s, or S where that
is less, of ``k = ceil(S / s)`` rows at most. (Other numbers, where these would make a round much shorter, are rare, and
not counted on.) A step that returns is sent on at once, so a round, in which every sequence gets one token, takes the
longer of two: the slowest resource has all steps to deal with; and no step is back before it has been everywhere.
Resources are the processes of the stages, each with what else its cores do, and the links. With one step in the ring
only the second counts: it is what a single user waits for. Where the steps are not equal, as of 8 sequences in three
stages, the resources have the mean of them to deal with, and the way is that of the largest.

No two steps take equally long, and stages that hand each other one step at a time wait for the longer one at each turn;
and a step of one row, which does nothing but read weights, suffers more from company than one of many. How much that is
only a run tells: ``waits``, a factor.

A prompt goes in chunks that follow each other through links and stages; the last one brings the first token itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ruvcompile.forecast import HopForecast


@dataclass(frozen=True)
class Beat:
    """A step of one pipeline, in ms: of the slowest resource on average, and all of the way there and back."""

    slowest: float
    through: float


def grouping(streams: int, stages: int) -> tuple[int, int]:
    """Rows of the largest step and steps in the ring, of ``streams`` sequences."""
    return -(-streams // stages), min(streams, stages)


def in_ring(streams: int, stages: int, *, decoder: bool) -> int:
    """Steps of a pipeline that are on their way at a time."""
    return grouping(streams, stages)[1] if decoder else min(streams, 2 * stages)


def round_ms(beat: Beat, steps: int) -> float:
    """The time in which every sequence gets a token, with so many steps in the ring."""
    return max(steps * beat.slowest, beat.through)


def per_second(beat: Beat, streams: int, stages: int, waits: float = 1.0) -> float:
    """Tokens per second of all sequences together; ``beat`` is of steps of as many rows as there will be."""
    steps = in_ring(streams, stages, decoder=True)
    return 1e3 * streams / (max(round_ms(beat, steps), 1e-9) * waits)


def calls_per_second(beat: Beat, callers: int, stages: int, waits: float = 1.0) -> float:
    """Calls of a graph per second: each is a step of its own, and at most two per stage are in the ring."""
    steps = in_ring(callers, stages, decoder=False)
    return 1e3 * steps / (max(round_ms(beat, steps), 1e-9) * waits)


def shares(total: int, parts: int) -> tuple[int, ...]:
    """``total`` sequences on ``parts`` pipelines, as evenly as can be, the larger shares first."""
    return tuple(total // parts + (number < total % parts) for number in range(parts))


def first_token_ms(
    sizes: Sequence[int],
    chunks: Sequence[Sequence[float]],
    head_ms: float,
    hops: Sequence[HopForecast],
    beside: Collection[int] = (),
) -> float:
    """From the prompt to its first token, nobody else being there.

    Every stage does one chunk at a time, and every link carries one message at a time. No more than two chunks per
    stage are in the ring; a token comes back of each, at most.

    Args:
        sizes: tokens of each chunk.
        chunks: of each the times of the stages, in order.
        head_ms: the head's work on each chunk before it leaves.
        hops: the links in order, the way back to the head last.
        beside: the stages on whose cores the head works; what they have to do then waits so long.
    """
    stages = len(hops) - 1
    links, free, head, back = [0.0] * len(hops), [0.0] * stages, 0.0, deque([0.0] * 2 * stages, maxlen=2 * stages)
    for tokens, times in zip(sizes, chunks, strict=True):
        at = max(head, back[0])
        for stage in beside:
            free[stage] += min(head_ms, max(0.0, free[stage] - at))
        head = at = at + head_ms
        for number, hop in enumerate(hops):
            carried = hop.ms_per_byte * hop.bytes_per_row * (tokens if number < stages else 1)
            links[number] = at = max(at, links[number]) + carried
            at += hop.latency_ms
            if number < stages:
                free[number] = at = max(at, free[number]) + times[number]
        back.append(at)
    return back[-1]
