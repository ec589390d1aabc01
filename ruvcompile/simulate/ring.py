"""When a step is where: one simulated pipeline as a ring of servers, links and stages in turn.

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

from ruvcompile.forecast import PipelineForecast

HEAD = -1
_ROW_BITS = 20
"""More rows than a step ever has."""


@dataclass(frozen=True)
class Span:
    """Somebody at work: ``stage`` is the number of the stage, or of the hop for links, or -1 for the head.

    ``what`` is ``decode``, ``prompt`` or ``call`` (a stage), ``link`` or ``head``; ``rows`` the tokens of the step (1
    for a call). ``node`` is who works; for a link, who sends. The head's work is of no pipeline, which is -1, too.
    """

    pipeline: int
    stage: int
    node: str
    start_ms: float
    end_ms: float
    what: str
    rows: int


class _Way:
    """Where steps of a kind go: of each server its number, how long it is busy, and the latency to the next one.

    ``taken`` counts the steps that went.
    """

    __slots__ = ("taken", "visits")

    def __init__(self, visits: list[tuple[int, float, float]]) -> None:
        self.visits = visits
        self.taken = 0


class Ring:
    """One pipeline's servers: hop 0, stage 0, hop 1, stage 1, ..., the last hop.

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
        self._ways: dict[int, _Way] = {}
        self._beside_head = [
            2 * stage + 1 for stage, expected in enumerate(pipeline.stages) if expected.node == head_node
        ]
        self._lent = dict.fromkeys(self._beside_head, 0.0)
        self._lost = [0.0] * len(pipeline.stages)
        self.clear(0.0)

    @property
    def beside_head(self) -> bool:
        """Whether a stage works on the head's node."""
        return bool(self._beside_head)

    def clear(self, now: float) -> None:
        """Nobody has anything to do."""
        self._free = [now] * (2 * len(self._pipeline.stages) + 1)

    def send(self, now: float, rows: int, tokens: int) -> float:
        """A step of ``rows`` that decode and ``tokens`` of a prompt leaves the head now; when its result is there."""
        way = self._ways.get(tokens << _ROW_BITS | rows) or self._way(rows, tokens)
        way.taken += 1
        if self._beside_head:
            self._lend()
        if self._spans is not None:
            self._note(now, way, rows, tokens)
        free = self._free
        at = now
        for server, takes, latency in way.visits:
            begins = free[server]
            if begins < at:
                begins = at
            free[server] = at = begins + takes
            at += latency
        return at

    def head_works(self, now: float, takes: float) -> None:
        """The head works for ``takes`` ms from now: what a stage beside it would do meanwhile, it does later."""
        for server in self._beside_head:
            lent = min(takes, max(0.0, self._free[server] + self._lent[server] - now))
            self._lent[server] += lent
            self._lost[server // 2] += lent

    def busy(self) -> tuple[float, ...]:
        """How long each stage worked, in ms, the head's work in its place included."""
        busy = list(self._lost)
        for way in self._ways.values():
            for server, takes, _ in way.visits:
                if server % 2:
                    busy[server // 2] += takes * way.taken
        return tuple(busy)

    def _lend(self) -> None:
        """What was lent to the head is missing now."""
        for server in self._beside_head:
            self._free[server] += self._lent[server]
            self._lent[server] = 0.0

    def _way(self, rows: int, tokens: int) -> _Way:
        """Where a step of a kind goes, remembered: curves are asked once for each number of tokens.

        A link that a step takes no time on is no server, only a latency of what comes before it.
        """
        stages, hops = self._pipeline.stages, self._pipeline.hops
        visits: list[tuple[int, float, float]] = []
        for number, hop in enumerate(hops):
            # Of a prompt, at most one token comes back.
            carried = rows + (tokens if number < len(stages) else min(tokens, 1))
            takes = hop.ms_per_byte * hop.bytes_per_row * carried
            if takes or not visits:
                visits.append((2 * number, takes, hop.latency_ms))
            else:
                visits[-1] = (*visits[-1][:2], hop.latency_ms)  # a stage, whose own latency is none
            if number < len(stages):
                visits.append((2 * number + 1, stages[number].ms(rows, tokens), 0.0))
        way = self._ways[tokens << _ROW_BITS | rows] = _Way(visits)
        return way

    def _note(self, now: float, way: _Way, rows: int, tokens: int) -> None:
        """Who works when on a step that leaves now; a message on a link does until it has arrived."""
        assert self._spans is not None
        what = "call" if not self._decoder else "decode" if rows else "prompt"
        count = rows + tokens
        at = now
        for server, takes, latency in way.visits:
            begins = max(at, self._free[server])
            at = begins + takes
            place, sender = server // 2, self._senders[server // 2]
            if server % 2:
                node = self._senders[place + 1]
                self._spans.append(Span(self._number, place, node, begins, at, what, count))
                if latency:
                    self._spans.append(Span(self._number, place + 1, node, at, at + latency, "link", count))
            elif takes or latency:
                self._spans.append(Span(self._number, place, sender, begins, at + latency, "link", count))
            at += latency
