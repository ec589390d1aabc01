"""Is there room on the disk for what will be written? Asked before it is, not found out in the middle.

Twice: before anything is measured, when it is not known how many copies there will be, and again when the plan is.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ruvcompile.errors import MachineError
from ruvcompile.lower.weights import can_link, size_of
from ruvcompile.passes.units import Unit
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.quantities import show_bytes

SPARE_BYTES = 64 << 20
"""Of disk for everything that is no weight: graphs, checks, manifests, reports."""


def check_disk(work: Path, program: Program, units: Sequence[Unit], stages: int) -> None:
    """Refuse, before a weight is written, what the disk has no room for.

    Every weight is written once. Stages link to what the store holds where the file system can; elsewhere, and for
    what several of them read, they hold copies of their own.

    Args:
        work: where the build is made.
        program: what is built.
        units: of it.
        stages: into how many of them it will be cut, wherever; of one pipeline.

    Raises:
        MachineError: with what would be needed, and what there is.
    """
    values = program.model.graph.initializers
    readers = Counter(name for unit in units for name in unit.weights)
    sizes = {name: size_of(values[name]) for name in readers}
    whole = sum(sizes.values())
    again = sum(sizes[name] * (min(count, stages) - 1) for name, count in readers.items())
    again += 0 if can_link(work) else whole
    _require_free(work, whole, again)


def check_copies(work: Path, program: Program, plan: Plan) -> None:
    """Refuse a plan of several pipelines where their bundles have no room; each node's holds weights of its own.

    Args:
        work: where the build is made; what is already written there is not needed again.
        program: what is built.
        plan: of it.

    Raises:
        MachineError: with what would be needed, and what there is.
    """
    values = program.model.graph.initializers
    bundles = 0
    for piece in plan.pieces:
        inside = set(piece.nodes)
        names = {name for unit in plan.units if not inside.isdisjoint(unit.nodes) for name in unit.weights}
        bundles += sum(size_of(values[name]) for name in names)
    files = (path.stat() for path in work.rglob("*") if path.is_file())
    there = sum({each.st_ino: each.st_size for each in files}.values())  # a bundle's weights are the store's files
    _require_free(work, bundles, bundles * (len(plan.pipelines) - 1), there)


def _require_free(work: Path, weights: int, copies: int, there: int = 0) -> None:
    """Refuse what is more than the disk has free, beside the ``there`` bytes that are already written."""
    needed, free = weights + copies + SPARE_BYTES, shutil.disk_usage(work).free + there
    if needed > free:
        raise MachineError(
            "disk-short",
            f"the build needs {show_bytes(needed)} of disk where it is written, and {show_bytes(free)} are free",
            context=[f"weights {show_bytes(weights)}, copies of them {show_bytes(copies)}; {work.parent}"],
            hint="make room, choose another place with -o, or use --quant int4",
        )
