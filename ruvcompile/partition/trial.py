"""One pass over all that can be built from the nodes: which downsets can be reached, with which nodes, how well.

A *state* is a set of nodes that have been used, so many of each kind, and the kind of the last one; for each state
there is one number or truth per downset. States with k nodes follow from those with k - 1: a stage of kind t begins
where any state without it ends (and the hop between the two kinds allows), ends wherever the ``Sweep`` says so, and
all states of the same last kind are swept together.

A downset from which the nodes that are left cannot finish is not kept: what is above it must fit their memory
together, and at any prices of their time, each item at its cheapest, must not cost more than ``bound`` of each.

``reach`` asks for partitions whose every resource takes at most ``bound``: the best beginning of a stage is the one
with the greatest ``begins``. If it is refused, the least time that would have been accepted somewhere is remembered:
below that the very same downsets are reached, so no bound below it is worth a trial. ``least`` asks for the smallest
latency: the best beginning is the one with the smallest latency so far, less its ``begins``.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from ruvcompile.partition.arrays import Bools, Floats, Ints, Ranks
from ruvcompile.partition.fields import Fields
from ruvcompile.partition.limits import Limits
from ruvcompile.partition.path import Path
from ruvcompile.partition.states import Nodes, State, finals, may_follow, rising, within
from ruvcompile.partition.sums import summed
from ruvcompile.partition.sweep import Sweep

_CAREFUL = 1 - 1e-9
"""Sums of the same times in another order differ in the last digits."""


@dataclass
class Trial:
    """What one pass found: per state, where it ends, where those stages begin, and (latency) how long it took."""

    bound: float = math.inf
    ends: dict[State, Bools] = field(default_factory=dict)
    begun: dict[State, Ints] = field(default_factory=dict)
    took: dict[State, Floats] = field(default_factory=dict)
    nearest: dict[Nodes, float] = field(default_factory=dict)


class Search:
    """All that stays the same between passes."""

    def __init__(self, fields: Fields, limits: tuple[Limits | None, ...]) -> None:
        self.fields = fields
        self.limits = limits
        kinds = range(len(fields.task.kinds))
        self.sweeps = [Sweep(fields, kind, limits[kind]) for kind in kinds]
        last = np.arange(fields.lattice.count)
        # Of equal ones the first downset has the greater rank.
        self._sorted = [np.lexsort((-last, fields.begins[kind])) for kind in kinds]
        self._ranks = [_places(order) for order in self._sorted]
        task = fields.task
        times = np.array([kind.item_ms for kind in task.kinds]).reshape(len(task.kinds), -1)
        self._prices = 1 / np.maximum(times.sum(1), 1e-300)
        cheapest = (times * self._prices[:, None]).min(0)
        whole = summed(fields.lattice, np.column_stack([cheapest, np.array(task.item_bytes, np.float64)]))
        self._left = whole[-1] - whole
        self._rooms = np.array([max(0, kind.memory - task.runtime_bytes) for kind in task.kinds], np.float64)

    def reach(self, bound: float, wanted: Collection[Nodes]) -> Trial:
        """What can be reached on the way to any of ``wanted`` with no resource busier than ``bound``."""
        fields, trial = self.fields, Trial(bound)
        goals, least_bounds = np.array(sorted(wanted)), dict[Nodes, Floats]()
        for kind, states in rising(wanted):
            begins = [self._openings(trial, state) for state in states]
            mask = np.stack([opening for opening, _ in begins], axis=1)
            ranks = np.where(mask, self._ranks[kind][:, None], np.int32(-1))
            scores = fields.begins[kind][self._sorted[kind]]
            best = self._swept(kind, sum(states[0][0]), goals, ranks)
            none = best < 0
            time = fields.ends[kind][:, None] - scores[best]
            time[none | ~fields.legal[:, None]] = math.inf
            begun = np.where(none, -1, self._sorted[kind][best])
            for column, state in enumerate(states):
                inside = (time[:, column] <= bound) & np.isfinite(time[:, column])
                beyond = time[:, column][~inside].min(initial=math.inf)
                least = least_bounds.get(state[0])
                if least is None:
                    least = least_bounds[state[0]] = self._least_bound(state[0], goals)
                hopeless = inside & (least > bound)
                later = least[hopeless].min(initial=math.inf)
                trial.ends[state], trial.begun[state] = inside & ~hopeless, begun[:, column]
                known = trial.nearest.get(state[0], math.inf)
                trial.nearest[state[0]] = min(known, float(beyond), float(later), begins[column][1])
        return trial

    def least(self, wanted: Collection[Nodes]) -> Trial:
        """The least latency of every downset with every state on the way to any of ``wanted``."""
        trial, goals = Trial(), np.array(sorted(wanted))
        for kind, states in rising(wanted):
            took, begun, _ = self.shortest(trial, kind, states, goals)
            for column, state in enumerate(states):
                took[np.isinf(self._least_bound(state[0], goals)), column] = math.inf
                trial.took[state], trial.begun[state] = took[:, column], begun[:, column]
                trial.ends[state] = np.isfinite(took[:, column])
        return trial

    def shortest(self, trial: Trial, kind: int, states: Sequence[State], goals: Ints) -> tuple[Floats, Ints, Floats]:
        """How long it takes at least to get to every downset with a last stage of a kind, no matter how long that is.

        Returns:
            ``[downsets, states]`` each: the time, where the last stage begins, and what a stage that begins there
            saves of the time at its end; infinite, or minus that, where there is none.
        """
        fields = self.fields
        before = np.stack([self._so_far(trial, state) for state in states], axis=1)
        scores = fields.begins[kind][:, None] - before
        order = np.lexsort((np.broadcast_to(-np.arange(len(scores))[:, None], scores.shape), scores), axis=0)
        ranks = np.empty(scores.shape, np.int32)
        np.put_along_axis(ranks, order, np.arange(len(scores), dtype=np.int32)[:, None], axis=0)
        ranks[~np.isfinite(scores)] = -1
        best = self._swept(kind, sum(states[0][0]), goals, ranks)
        begun = np.take_along_axis(order, np.maximum(best, 0), axis=0)
        took = fields.ends[kind][:, None] - np.take_along_axis(scores, begun, axis=0)
        took[(best < 0) | ~fields.legal[:, None]] = math.inf
        return took, begun, scores

    def quickest(self, trial: Trial, wanted: Collection[Nodes]) -> tuple[Path | None, float]:
        """The path over any of ``wanted`` with the least latency, and that; ``trial`` is what ``least`` found."""
        leave = self.fields.task.leave_ms
        ends = [state for state in finals(wanted) if trial.ends[state][-1]]
        took = {state: float(trial.took[state][-1]) + (leave[state[1]] if leave else 0.0) for state in ends}
        state = min(ends, key=lambda each: rounded(took[each]), default=None)
        return (None, math.inf) if state is None else (self.path(trial, state), took[state])

    def nearest(self, trial: Trial, nodes: Nodes) -> float:
        """No bound below this one leads ``nodes`` further than the trial's did."""
        return min((least for part, least in trial.nearest.items() if within(part, nodes)), default=math.inf)

    def path(self, trial: Trial, state: State) -> Path:
        """How a state got to the end."""
        fields, downset = self.fields, self.fields.lattice.count - 1
        stages: list[tuple[int, int, int]] = []
        value = 0.0
        while True:
            kind = state[1]
            begun = int(trial.begun[state][downset])
            stages.append((kind, begun, downset))
            value = max(value, float(fields.ends[kind][downset] - fields.begins[kind][begun]))
            if not begun:
                return Path(tuple(reversed(stages)), value)
            followed = self.before(trial, state, begun)
            crossing = float(fields.crossing[begun])
            value = max(value, crossing * fields.task.hop(followed[1], kind).ms_per_byte)
            state, downset = followed, begun

    def before(self, trial: Trial, state: State, downset: int) -> State:
        """The state that ends where a stage begins: the fastest one, else the first."""
        task, crossing = self.fields.task, self.fields.crossing[downset]
        found: list[tuple[float, State]] = []
        for earlier in may_follow(state):
            hop = task.hop(earlier[1], state[1])
            if trial.ends[earlier][downset] and crossing * hop.ms_per_byte <= trial.bound:
                took = trial.took[earlier][downset] if trial.took else 0.0
                found.append((float(took + hop.ms + crossing * hop.ms_per_byte) if trial.took else 0.0, earlier))
        return min(found, key=lambda each: each[0])[1]

    def _swept(self, kind: int, size: int, goals: Ints, ranks: Ranks) -> Ranks:
        """The best beginnings of stages after which ``size`` nodes are used; first and last ones need no sweep."""
        sweep = self.sweeps[kind]
        if size == 1:
            return sweep.best_first(ranks)
        return sweep.best_last(ranks) if size == int(goals.sum(1).max()) else sweep.best(ranks)

    def _least_bound(self, nodes: Nodes, goals: Ints) -> Floats:
        """At each downset, a bound below which the nodes that are left cannot finish; infinite where they never can."""
        used = np.array(nodes)
        above = goals[(goals >= used).all(1)]
        left = int(above.sum(1).max()) - sum(nodes)
        spare = above.max(0) - used
        prices = np.sort(np.repeat(self._prices, spare))[::-1][:left].sum()
        room = np.sort(np.repeat(self._rooms, spare))[::-1][:left].sum()
        if not left:
            return np.append(np.full(len(self._left) - 1, math.inf), 0.0)
        found: Floats = self._left[:, 0] * _CAREFUL / prices
        found[self._left[:, 1] > room] = math.inf
        return found

    def _openings(self, trial: Trial, state: State) -> tuple[Bools, float]:
        """Where a stage may begin; and the least bound above the trial's that would let it begin elsewhere."""
        nodes, kind = state
        opens = self.fields.opens[kind]
        found, beyond = np.zeros(len(opens), bool), math.inf
        if sum(nodes) == 1:
            found[0] = opens[0]
            return found, beyond
        for earlier in may_follow(state):
            hop = self.fields.task.hop(earlier[1], kind)
            possible = trial.ends[earlier] & opens
            if hop.ms_per_byte:
                link = self.fields.crossing * hop.ms_per_byte
                slow = possible & (link > trial.bound)
                beyond = min(beyond, float(link[slow].min(initial=math.inf)))
                possible &= ~slow
            found |= possible
        return found, beyond

    def _so_far(self, trial: Trial, state: State) -> Floats:
        """Latency up to the beginning of a stage, over links within the trial's bound."""
        nodes, kind = state
        task, opens = self.fields.task, self.fields.opens[kind]
        found = np.full(len(opens), math.inf)
        if sum(nodes) == 1:
            if opens[0]:
                found[0] = task.enter_ms[kind] if task.enter_ms else 0.0
            return found
        for earlier in may_follow(state):
            hop = task.hop(earlier[1], kind)
            link = self.fields.crossing * hop.ms_per_byte
            link[link > trial.bound] = math.inf
            np.minimum(found, trial.took[earlier] + hop.ms + link, out=found)
        found[~opens] = math.inf
        return found


def _places(order: Ints) -> Ranks:
    found = np.empty(len(order), np.int32)
    found[order] = np.arange(len(order), dtype=np.int32)
    return found


def rounded(value: float) -> float:
    """Sums of the same times in another order differ in the last digits."""
    return float(f"{value:.12g}")
