"""What the cost tables say about a member: times of units, the process's own work, the head, the links.

A table may know a member's kind of machine in another company than is asked for (``beside``); then the row of the
nearest company counts, of two as near the larger one, which promises less. A row of an old table has no curve: it does
not tell what more rows cost, so nothing is expected of them, and ``k`` rows take ``k`` times as long.

Of a machine with several back ends it knows some or all, and of one of them perhaps not every unit: what that cannot
run has no row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from ruvcompile.fleet import LOOPBACK, NETWORK
from ruvcompile.partition.task import Hop
from ruvcompile.plan.facts import Facts
from ruvcompile.plan.nodes import Member
from ruvrun.backends import BACK_ENDS
from ruvrun.costs import Overhead, UnitCost

TOLD, MEASURED, ASSUMED = "fleet", "measured", "assumed"

_Row = TypeVar("_Row", UnitCost, Overhead)


@dataclass(frozen=True)
class Prices:
    """The tables of ``facts``, indexed."""

    facts: Facts

    @cached_property
    def _units(self) -> dict[tuple[str, str, str, int], list[UnitCost]]:
        found = defaultdict(list)
        for row in self.facts.costs.unit:
            found[row.key, row.target, row.backend, row.threads].append(row)
        return found

    @cached_property
    def _known(self) -> frozenset[tuple[str, str, int]]:
        keys = frozenset(self.facts.keys)
        return frozenset((target, backend, threads) for key, target, backend, threads in self._units if key in keys)

    def guises(self, member: Member) -> tuple[Member, ...]:
        """The member with each of its machine's back ends that the tables know anything of, one at a time."""
        target = member.target
        if len(target.backends) == 1:
            return (member,)
        known = [backend for backend in target.backends if (target.name, backend, member.threads) in self._known]
        assert known, "measure fills the table before a plan is made"
        return tuple(replace(member, target=target.on(backend)) for backend in known)

    def missing(self, member: Member) -> frozenset[int]:
        """Units that its back end cannot run: another one of its machine has rows of them, and this one has not."""
        kind = (member.target.name, member.target.backend, member.threads)
        return frozenset(number for number, key in enumerate(self.facts.keys) if not self._units.get((key, *kind)))

    @cached_property
    def _links(self) -> dict[tuple[str, str], Hop]:
        rows = self.facts.costs.link
        return {(row.sender, row.receiver): Hop(row.latency_ms, 1e3 / row.bytes_per_s) for row in rows}

    @cached_property
    def linked(self) -> frozenset[str]:
        """Nodes whose links are not like everybody's: named in the fleet file or measured."""
        pairs = [*(self.facts.options.fleet.pairs or {}), *self._links]
        return frozenset(name for pair in pairs for name in pair)

    def rows(self, member: Member, beside: int) -> Sequence[UnitCost]:
        """The cost of every unit on a member; ``measure`` has filled the table.

        Of a unit that its back end cannot run (``missing``), and is kept off it, the cost is that on another one.
        """
        kind = (member.target.name, member.target.backend, member.threads, beside)
        if kind not in self._rows:
            self._rows[kind] = self._found(member, beside)
        return self._rows[kind]

    @cached_property
    def _rows(self) -> dict[tuple[str, str, int, int], Sequence[UnitCost]]:
        return {}

    @cached_property
    def _chunks(self) -> dict[tuple[str, str, int, int, int], tuple[tuple[float, float], ...]]:
        return {}

    @cached_property
    def _steps(self) -> dict[tuple[str, str, int, int, float, bool], tuple[float, ...]]:
        return {}

    def _found(self, member: Member, beside: int) -> Sequence[UnitCost]:
        found, target = [], member.target
        for key in self.facts.keys:
            own = self._units.get((key, target.name, target.backend, member.threads))
            others = (self._units.get((key, target.name, other, member.threads)) for other in BACK_ENDS)
            rows = own or next(filter(None, others), None)
            assert rows, "measure fills the table before a plan is made"
            found.append(_nearest(rows, beside))
        return found

    def step_ms(self, member: Member, beside: int, rows: float, *, alone: bool = False) -> tuple[float, ...]:
        """Each unit's time in a step of ``rows`` rows; ``alone``: where that step is all there is to do anywhere."""
        kind = (member.target.name, member.target.backend, member.threads, beside, rows, alone)
        if kind not in self._steps:
            depth = self.facts.depth if self.facts.decoder else None
            times = (row.step_ms(rows, depth) if row.curve else row.ms * rows for row in self.rows(member, beside))
            self._steps[kind] = _times(times, self.facts.alone if alone else self.facts.corrections)
        return self._steps[kind]

    def chunk_ms(self, member: Member, beside: int, tokens: int, position: int = 0) -> tuple[float, ...]:
        """Each unit's time for ``tokens`` tokens of a prompt in one step, ``position`` tokens from its beginning."""
        if tokens == 1:
            return self.step_ms(member, beside, 1)
        kind = (member.target.name, member.target.backend, member.threads, beside, tokens)
        if kind not in self._chunks:
            rows = self.rows(member, beside)
            self._chunks[kind] = tuple((row.prompt_ms(tokens), _further(row, tokens)) for row in rows)
        return _times((ms + later * position for ms, later in self._chunks[kind]), self.facts.corrections)

    def overhead(self, member: Member, beside: int) -> Overhead:
        """The process's own work on a member's machine; all zero where no table tells it."""
        target, kind = member.target, self.facts.kind
        known = [
            row
            for row in self.facts.costs.overhead
            if (row.kind, row.target, row.backend) == (kind, target.name, target.backend)
        ]
        if known:
            near = min(abs(row.threads - member.threads) for row in known)
            most = max(row.threads for row in known if abs(row.threads - member.threads) == near)
            return _nearest([row for row in known if row.threads == most], beside)
        return Overhead(kind=kind, target=target.name, backend=target.backend, threads=member.threads, source=0)

    def runtime_bytes(self, member: Member) -> int:
        """What a stage's process takes without its weights."""
        own = BACK_ENDS[member.target.backend]
        known = (self.overhead(member, member.beside).runtime_bytes or own.runtime_bytes) + own.serving_bytes
        return max(0, known + self.facts.process_bytes.get(member.target.backend, 0))

    def hop(self, sender: Member, receiver: Member) -> Hop:
        """The way from one process to another: as the fleet file says, else as measured, else assumed.

        On one machine it costs no time per byte: what encrypting and copying takes is the processes' own work.
        """
        return self._way(sender, receiver)[0]

    def link_source(self, sender: Member, receiver: Member) -> str:
        """What that way is known from: ``fleet`` (its file), ``measured`` or ``assumed``."""
        return self._way(sender, receiver)[1]

    def _way(self, sender: Member, receiver: Member) -> tuple[Hop, str]:
        pair = (sender.name, receiver.name)
        told = self.facts.options.fleet.link(*pair)
        same = sender.name == receiver.name
        if told is not None and not same:
            both = sender.node.local and receiver.node.local
            return Hop(1e3 * told.latency, 0.0 if both else 1e3 / told.bandwidth), TOLD
        if same or (sender.node.local and receiver.node.local):
            known = self.overhead(sender, sender.beside).hop_ms
            latency = known or (0.0 if same else 1e3 * LOOPBACK.latency)
            return Hop(max(0.0, latency + self.facts.hop_ms)), MEASURED if known else ASSUMED
        measured = self._links.get(pair) or self._links.get((pair[1], pair[0]))
        if measured is not None:
            return measured, MEASURED
        return Hop(1e3 * NETWORK.latency, 1e3 / NETWORK.bandwidth), ASSUMED


def _further(row: UnitCost, tokens: int) -> float:
    """What a chunk takes longer for each token before it, from chunks that were measured behind others."""
    later = [point for point in row.curve if point.tokens > 1 and point.depth]
    if not later:
        return 0.0
    slopes = [(point.ms - row.prompt_ms(point.tokens)) / (point.depth * point.tokens) for point in later]
    return max(0.0, sum(slopes) / len(slopes)) * tokens


def _times(times: Iterable[float], factors: Sequence[float]) -> tuple[float, ...]:
    return tuple(ms * factor for ms, factor in zip(times, factors, strict=True)) if factors else tuple(times)


def _nearest(rows: Iterable[_Row], beside: int) -> _Row:
    return min(rows, key=lambda row: (abs(row.beside - beside), -row.beside))


__all__ = ["Prices"]
