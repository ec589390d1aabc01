"""Where to cut: the problem as nouns, and its exact solution over a chain of units."""

from ruvcompile.partition.chain import evaluate, lower_bound, solve
from ruvcompile.partition.problem import Border, Device, Partition, Problem, Shared

__all__ = ["Border", "Device", "Partition", "Problem", "Shared", "evaluate", "lower_bound", "solve"]
