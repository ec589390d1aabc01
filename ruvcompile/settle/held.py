"""A plan beside what its stages were seen to take.

They are seen several times in one run: with a single sequence, with a few, up to one for each stage, and with as many
as are planned for. Alone a step finds nobody at work beside it, and waits for nothing but its way; so what one user
gets tells the ways. What the others get tells what company and turns cost, of steps of one row and of many. That
strangers had a core meanwhile (``others``) is seen there too, as a step that took longer by the clock than its thread
worked: that is no stage's cost and no way, and no costs are made of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruvcompile.passes.units import Unit
from ruvcompile.plan import Facts, Plan
from ruvrun.backends import CPU, device_for
from ruvrun.costs import StageCost
from ruvrun.machine import has_cpu_quota

AGREED = 0.03
"""Prediction and measurement agree when they differ by no more than this part."""

BUSY = 1.05
"""Where steps take so many times what their threads work, others are at work on the machine; that is told."""

Ratios = tuple[float | None, ...]
"""Of each stage, what its units took over what they should have; None where that was not seen."""


@dataclass(frozen=True)
class Held:
    """A plan beside what was seen of it: by the number of sequences, of each stage, pipeline by pipeline, its row.

    There are rows of a single sequence and of all that are planned for, and of some numbers between them.
    """

    plan: Plan
    rows: Mapping[int, tuple[StageCost, ...]]

    @property
    def seen(self) -> tuple[StageCost, ...]:
        """With the planned sequences."""
        return self.rows[self.plan.streams]

    @property
    def lone(self) -> tuple[StageCost, ...]:
        """With a single one."""
        return self.rows[1]

    @property
    def rates(self) -> dict[int, float]:
        """What so many sequences got together, per second."""
        return {streams: rows[0].per_s for streams, rows in self.rows.items()}

    @property
    def ratios(self) -> Ratios:
        """With the planned sequences."""
        return _ratios(self.seen, self.plan.inner_ms)

    @property
    def lone_ratios(self) -> Ratios:
        """With a single one, which passes one pipeline alone."""
        return _ratios(self.lone, self.plan.alone_ms)

    @property
    def others_ms(self) -> float:
        """By how much longer the steps of a single sequence took together than their threads worked."""
        return sum(max(0.0, row.clock_ms - row.ms) for row in self._passed)

    @property
    def others(self) -> float:
        """The same as a factor, at least 1."""
        own = sum(row.ms for row in self._passed)
        return (own + self.others_ms) / own if own else 1.0

    @property
    def _passed(self) -> tuple[StageCost, ...]:
        """What a single sequence passed: the stages of the first pipeline."""
        return self.lone[: len(self.plan.pieces)]

    @property
    def difference(self) -> float:
        """The largest difference of any stage, or of the whole, as a part of what was predicted."""
        ratios = [ratio for ratio in (*self.ratios, *self.lone_ratios) if ratio is not None]
        ratios += [done / wanted for done, wanted in self._promises if done and wanted]
        return max((abs(ratio - 1) for ratio in ratios), default=0.0)

    @property
    def _promises(self) -> list[tuple[float, float]]:
        """Of each number of sequences, what it got, and what it was promised."""
        return [(per_s, promised(self.plan, streams)) for streams, per_s in self.rates.items()]

    @property
    def agrees(self) -> bool:
        """Whether the plan's promise holds."""
        return self.difference <= AGREED

    @property
    def figures(self) -> dict[str, Any]:
        """For the JSON of the plan."""
        return {
            "stage_ms": [round(row.ms, 4) for row in self.seen],
            "peak_rss_bytes": [row.peak_rss_bytes for row in self.seen],
            "per_s": round(self.seen[0].per_s, 2),
            "streams": self.seen[0].streams,
            "per_s_one": round(self.lone[0].per_s, 2),
            "per_s_few": {str(streams): round(per_s, 2) for streams, per_s in self._few.items()},
            "difference": round(self.difference, 4),
        }

    @property
    def _few(self) -> dict[int, float]:
        return {streams: per_s for streams, per_s in self.rates.items() if 1 < streams < self.plan.streams}

    def __str__(self) -> str:
        what = "tokens" if self.plan.space is not None else "items"
        rates = f"{self.seen[0].per_s:.1f} {what}/s where {promised(self.plan):.1f} were predicted"
        for streams, per_s in self._few.items():
            rates += f", {per_s:.1f} of {streams} where {promised(self.plan, streams):.1f} were"
        if self.lone != self.seen:
            rates += f", {self.lone[0].per_s:.1f} of one alone where {promised_alone(self.plan):.1f} were"
        stages = ", ".join("not seen" if ratio is None else f"{100 * (ratio - 1):+.1f} %" for ratio in self.ratios)
        verdict = "they agree" if self.agrees else f"they differ by up to {100 * self.difference:.1f} %"
        taken = f"; others had the cores {100 * (1 - 1 / self.others):.0f} % of the time" if self.others > BUSY else ""
        return f"stages measured together: {rates}; stages {stages}; {verdict}{taken}"


def shares_cores(plan: Plan, facts: Facts) -> bool:
    """Whether processes of this machine take turns on a core."""
    return sum(member.threads for member in plan.members if member.node.local) > facts.cores


def by_own_time(plan: Plan) -> bool:
    """Whether what the thread of a stage worked is what its steps take, as ``ruvrun profile`` has it.

    Then whoever takes its core now and then is no reason to move a cut, be it another stage or a stranger.
    """
    on_cpu = all(device_for(member.target.backend) in ("", CPU) for member in plan.members)
    return on_cpu and all(member.threads == 1 for member in plan.members) and not has_cpu_quota()


def promised(plan: Plan, streams: int | None = None) -> float:
    """Tokens or items per second that the plan predicts for so many streams, those it is made for where none are
    given.
    """
    if streams not in (None, plan.streams):
        return dict(plan.rates)[streams]
    figures = plan.figures
    return float(figures.get("predicted_tokens_per_s", figures.get("predicted_items_per_s")) or 0.0)


def promised_alone(plan: Plan) -> float:
    """Tokens or items per second that the plan predicts for one alone."""
    return promised(plan, 1)


def units_of(plan: Plan) -> list[tuple[Unit, ...]]:
    """The units of each stage."""
    found, at = [], 0
    for piece in plan.pieces:
        held, inside = [], set(piece.nodes)
        while at < len(plan.units) and plan.units[at].nodes[0] in inside:
            held.append(plan.units[at])
            at += 1
        found.append(tuple(held))
    return found


def _ratios(rows: Sequence[StageCost], planned: Sequence[float]) -> Ratios:
    return tuple(row.ms / ms if row.ms and ms else None for row, ms in zip(rows, planned, strict=True))
