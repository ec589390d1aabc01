"""Cases by chance: small graphs with all rules, and decoders, on fleets of up to four nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from random import Random

from hypothesis import strategies as st

from ruvcompile.partition import Hop, Shared, Value
from tests.plan_cases import Case, Machine

_objectives = st.sampled_from(["throughput", "throughput", "throughput", "latency"])


@st.composite
def cases(draw: st.DrawFn, *, items: int = 5, nodes: int = 4, shared: bool = False) -> Case:
    """Any graph with values of any size, up to four nodes of up to three kinds, all rules, one to four callers."""
    count, size = draw(st.integers(1, items)), draw(_sizes(nodes))
    streams, objective = draw(st.integers(1, 4)), draw(_objectives)
    random = draw(st.randoms(use_true_random=True))  # one draw for all that need not shrink
    strict = random.random()
    machines = tuple(
        Machine(
            tuple(round(random.uniform(0, 9), 3) for _ in range(count)),
            stage_ms=random.choice([0.0, 0.5]),
            byte_ms=random.choice([0.0, 0.1]),
            head_ms=random.choice([0.0, 1.0, 5.0]),
        )
        for _ in range(random.randint(1, 3))
    )
    case = Case(
        _values(random, count),
        tuple(random.randint(0, 9) for _ in range(count)),
        machines,
        tuple(
            (random.randrange(len(machines)), random.choice([0, 0, 10, 20, 30]), barred)
            for barred in _barred(random, count, size, 0.15 * strict)
        ),
        _ways(random, size),
        streams,
        objective,
        shared=_weights(random, count) if shared else (),
        keeper=frozenset({0, *range(random.randint(1, size))}) if random.random() < 0.2 * strict else frozenset(),
    )
    return replace(case, shape=draw(st.sampled_from([None, *case.shapes()])))


@st.composite
def decoders(draw: st.DrawFn, *, nodes: int = 4) -> Case:
    """A decoder of two layers on nodes with room for it, one to six sequences; nothing takes time for its bytes."""
    size, streams, objective = draw(_sizes(nodes)), draw(st.integers(1, 6)), draw(_objectives)
    random = draw(st.randoms(use_true_random=True))
    machines = []
    for _ in range(random.randint(1, 3)):
        embed, attention, mlp, head = (round(random.uniform(0, 9), 3) for _ in range(4))
        parts = (embed, attention, mlp, attention, mlp, head)
        machines.append(Machine(parts, random.choice([0.1, 0.5, 1.0]), 0.0, 0.0, random.choice([0.0, 1.0, 5.0])))
    ways = {pair: Hop(hop.ms) for pair, hop in _ways(random, size).items()}
    chosen = tuple((random.randrange(len(machines)), 0, frozenset[int]()) for _ in range(size))
    values = tuple(Value(item - 1, (item,), 0) for item in range(7))
    case = Case(values, (0,) * 6, tuple(machines), chosen, ways, streams, objective, decoder=True)
    return replace(case, shape=draw(st.sampled_from([None, *case.shapes()])))


def _sizes(most: int) -> st.SearchStrategy[int]:
    return st.sampled_from([*range(1, most + 1), most])


def _values(random: Random, count: int) -> tuple[Value, ...]:
    """Every item reads something, and all that is made is read."""
    density, found = random.random(), list[Value]()
    orphans = set(range(count))
    for maker in range(count):
        for number in range(random.choice([1, 1, 2])):
            readers = tuple(reader for reader in range(maker + 1, count) if random.random() < density)
            orphans.difference_update(readers)
            if random.random() < 0.1 or not (number or readers):
                readers = (*readers, count)
            if readers:
                found.append(Value(maker, readers, random.randint(1, 5)))
    readers = tuple(item for item in range(count) if item in orphans or random.random() < 0.2)
    return (Value(-1, readers, random.randint(1, 5)), *found)


def _barred(random: Random, count: int, size: int, share: float) -> list[frozenset[int]]:
    """What each node may not hold; every item has a node."""
    able = [random.randrange(size) for _ in range(count)]
    return [
        frozenset(item for item in range(count) if able[item] != node and random.random() < share)
        for node in range(size)
    ]


def _ways(random: Random, size: int) -> dict[tuple[int, int], Hop]:
    few = [
        Hop(random.choice([0.0, 1.0, 4.0]), random.choice([0.0, 0.01, 0.5])) for _ in range(random.choice([1, 1, 3]))
    ]
    return {pair: random.choice(few) for pair in permutations(range(size), 2)}


def _weights(random: Random, count: int) -> tuple[Shared, ...]:
    readers = sorted(random.sample(range(count), random.randint(1, min(count, 3))))
    return (Shared(tuple(readers), random.randint(1, 9)),)
