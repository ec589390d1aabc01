"""What is searched: the lattice of a task."""

from __future__ import annotations

from dataclasses import dataclass

from ruvcompile.partition.fields import needs_of
from ruvcompile.partition.lattice import Lattice, lattice_of
from ruvcompile.partition.task import Task


@dataclass(frozen=True)
class Ground:
    """A task whose items are ``parts`` of the original one's, and its lattice; ``whole``: they are the same."""

    task: Task
    parts: tuple[tuple[int, ...], ...]
    lattice: Lattice
    whole: bool


def ground_of(task: Task, limit: int = 100_000) -> Ground:
    """The lattice of a task, contracted to at most ``limit`` downsets."""
    lattice = lattice_of(needs_of(task), limit)
    assert lattice is not None
    return Ground(task, tuple((item,) for item in range(len(task.item_bytes))), lattice, True)
