"""Where to cut, and on which kinds of nodes the pieces go: exactly, over all convex cuts of a graph.

``task`` has the nouns, ``weigh`` says what a given partition costs, ``solve`` finds the one with the least bottleneck
or latency, ``front`` the one with the shortest round, which is limited by both, and ``table`` lists them all where they
are few. Beneath: ``lattice`` (all downsets of the graph), ``fields`` and ``limits`` (what each costs, in time and in
memory), ``sweep`` (the best beginning of a stage, for all ends at once), ``trial`` (one pass over all ``states``, the
sets of nodes), ``ties`` (the quickest within a bound), ``bound`` and ``relaxed`` (what nothing can beat) and
``contract`` (what is done when there are too many downsets).
"""

from ruvcompile.partition.front import Ask, Round, rounds
from ruvcompile.partition.solve import best, best_each, frontier, sets_of
from ruvcompile.partition.task import (
    UNLIMITED,
    Hop,
    Kind,
    Partition,
    Shared,
    Stage,
    Task,
    Value,
    order_of,
    without_limits,
)
from ruvcompile.partition.weigh import evaluate, objections

__all__ = [
    "UNLIMITED",
    "Ask",
    "Hop",
    "Kind",
    "Partition",
    "Round",
    "Shared",
    "Stage",
    "Task",
    "Value",
    "best",
    "best_each",
    "evaluate",
    "frontier",
    "objections",
    "order_of",
    "rounds",
    "sets_of",
    "without_limits",
]
