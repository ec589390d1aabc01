"""With how many threads a stage works, where nobody said so: as measured best, where the tables know several numbers.

Usual is one thread for every core (``plan.nodes``). A Pi whose memory three threads keep busy is no faster with four,
and who measured it with three has a table of three. Where a machine cannot be measured here, what was measured counts
before what would only be scaled. Of this machine what is usual is measured if no table has it: that other numbers stand
in one by chance is no reason to leave cores idle.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ruvcompile.fleet import HOST
from ruvcompile.measure import held
from ruvcompile.plan import Member
from ruvcompile.program import Program
from ruvcompile.targets import Target
from ruvrun.costs import CostTable


def as_measured(
    program: Program, keys: Sequence[str], known: CostTable, candidates: Sequence[Member]
) -> tuple[tuple[Member, ...], tuple[str, ...]]:
    """The candidates with as many threads as was measured best, and sentences about those that so have another number.

    Args:
        known: the tables that were given.
        candidates: with their usual threads, or those that the fleet file says; the latter stay.
    """
    found, notes = [], dict[str, None]()
    for member in candidates:
        here, usual = member.node.local or member.target.name == HOST, member.threads
        times = {} if member.node.threads else _times(program, keys, known, member.target, member.beside if here else 0)
        most = usual if member.node.local or member.node.cpus else max(times, default=0)
        able = {threads: ms for threads, ms in times.items() if threads <= most}
        if able and (usual in able or not here):
            best = min(able, key=lambda threads: (able[threads], threads))
            if best != usual:
                member = replace(member, threads=best)
                notes[f"{best} threads on {member.target.name}, as measured best (default)"] = None
        found.append(member)
    return tuple(found), tuple(notes)


def _times(program: Program, keys: Sequence[str], known: CostTable, target: Target, beside: int) -> Mapping[int, float]:
    """What a step of one row takes with each number of threads that the tables know all of, on the best back end.

    Args:
        beside: as measured in that company; 0: in any.
    """
    found: dict[int, float] = {}
    for backend in target.backends:
        rows = [row for row in known.unit if (row.target, row.backend) == (target.name, backend)]
        for threads in sorted({row.threads for row in rows}):
            table = held(program, keys, known, target.name, backend, threads, beside or None)
            if table is not None and not any(map(table.scaled, table.unit)):
                ms = {row.key: row.ms for row in table.unit}
                found[threads] = min(sum(ms[key] for key in keys), found.get(threads, float("inf")))
    return found
