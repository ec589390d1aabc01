"""When a step is where: one simulated pipeline as a ring of servers, stages and links in turn.

Every stage does one step at a time, and every direction of a link carries one message at a time (its bytes; the
latency, which messages share, comes after that). Messages of a ring never overtake one another. So when a step begins
on a server depends on two things that are known once it is sent: when it leaves the server before, and when the step
before it leaves this one,

    begins = max(arrives, free),    free = begins + takes

(Lindley, 1952, for a single queue; for a chain of them the same holds server by server). So the whole way of a step is
computed when it is sent, and a simulation has one event per step, that it is back, instead of two for each stage and
each link.

The head's process works on the cores of its node. Where that node holds a stage, too, the work of both takes turns: the
head, which sleeps most of the time, is let in at once, and the stage loses that time from what it does next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from ruvcompile.forecast import PipelineForecast

HEAD = -1


@dataclass(frozen=True)
class Span:
    """Somebody at work: ``stage`` is the number of the stage, or of the hop for links, or -1 for the head.

    ``what`` is ``decode``, ``prompt`` or ``call`` (a stage), ``link`` or ``head``; ``rows`` the tokens of the step (1
    for a call). ``node`` is who works; for a link, who sends.
    """

    pipeline: int
    stage: int
    node: str
    start_ms: float
    end_ms: float
    what: str
    rows: int


class _Takes(NamedTuple):
    """How long a step keeps each link and each stage busy."""

    links: tuple[float, ...]
    stages: tuple[float, ...]


class Ring:
    """One pipeline's servers.

    Args:
        pipeline: what is expected of it.
        number: its number in the fleet, for spans.
        head_node: the node of the head.
        decoder: whether its steps are tokens of sequences.
        spans: where what happens is noted; None: nowhere.
    """

    def __init__(
        self, pipeline: PipelineForecast, number: int, head_node: str, decoder: bool, spans: list[Span] | None
    ) -> None:
        self._pipeline = pipeline
        self._number = number
        self._decoder = decoder
        self._spans = spans
        self._senders = (head_node, *(stage.node for stage in pipeline.stages))
        self._latency = tuple(hop.latency_ms for hop in pipeline.hops)
        self._takes: dict[tuple[int, bool], _Takes] = {}
        self._beside_head = tuple(number for number, stage in enumerate(pipeline.stages) if stage.node == head_node)
        self.busy = [0.0] * len(pipeline.stages)
        self.clear(0.0)

    def clear(self, now: float) -> None:
        """Nobody has anything to do."""
        self._links = [now] * len(self._pipeline.hops)
        self._stages = [now] * len(self._pipeline.stages)
        self._lost = [0.0] * len(self._pipeline.stages)

    def send(self, now: float, count: int, decode: bool) -> float:
        """A step of ``count`` tokens leaves the head now; when its result is there."""
        links, stages = self._takes.get((count, decode)) or self._cost(count, decode)
        free_links, free_stages, lost, busy = self._links, self._stages, self._lost, self.busy
        at = now
        number = 0
        for takes in stages:
            if at < free_links[number]:
                at = free_links[number]
            free_links[number] = at = at + links[number]
            at += self._latency[number]
            begins = free_stages[number]
            if begins < at:
                begins = at
            if lost[number]:
                takes += lost[number]
                lost[number] = 0.0
            free_stages[number] = at = begins + takes
            busy[number] += takes
            number += 1
            if self._spans is not None:
                self._note(number - 1, at - takes, takes, links, count, decode)
        if at < free_links[number]:
            at = free_links[number]
        free_links[number] = at = at + links[number]
        if self._spans is not None:
            self._note_link(number, at, links[number], count)
        return at + self._latency[number]

    def head_works(self, now: float, takes: float) -> None:
        """The head works for ``takes`` ms from now: what a stage beside it would do meanwhile, it does later."""
        for number in self._beside_head:
            self._lost[number] += min(takes, max(0.0, self._stages[number] - now))

    def _cost(self, count: int, decode: bool) -> _Takes:
        """What a step of a kind takes, remembered: curves are asked once for each number of tokens."""
        stages = self._pipeline.stages
        *there, back = self._pipeline.hops
        rows = count if decode else 1  # of a prompt, no more than one token comes back
        found = _Takes(
            (
                *(hop.ms_per_byte * hop.bytes_per_row * count for hop in there),
                back.ms_per_byte * back.bytes_per_row * rows,
            ),
            tuple((stage.step_ms if decode else stage.chunk_ms)(count) for stage in stages),
        )
        self._takes[count, decode] = found
        return found

    def _note(
        self, stage: int, begins: float, takes: float, links: tuple[float, ...], count: int, decode: bool
    ) -> None:
        self._note_link(stage, self._links[stage], links[stage], count)
        what = "call" if not self._decoder else "decode" if decode else "prompt"
        assert self._spans is not None
        self._spans.append(Span(self._number, stage, self._senders[stage + 1], begins, begins + takes, what, count))

    def _note_link(self, hop: int, ends: float, takes: float, count: int) -> None:
        """A message on a link, from when it begins to be sent until it has arrived."""
        assert self._spans is not None
        arrives = ends + self._latency[hop]
        if takes or self._latency[hop]:
            self._spans.append(Span(self._number, hop, self._senders[hop], ends - takes, arrives, "link", count))
