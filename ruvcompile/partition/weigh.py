"""What a given partition costs, whether or not it fits, and what speaks against it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

from ruvcompile.partition.task import Partition, Stage, Task


def evaluate(task: Task, stages: Sequence[Stage]) -> Partition:
    """Times and bytes of given stages; they may not fit, or break a rule: ask ``objections``. The bound is 0."""
    crossing = _crossing(task, stages)
    stage_ms, stage_bytes = [], []
    for stage, came, went in zip(stages, crossing, crossing[1:], strict=False):
        kind = task.kinds[stage.kind]
        moved = kind.byte_ms * (came + went)
        stage_ms.append(kind.stage_ms + sum(kind.item_ms[item] for item in stage.items) + moved)
        stage_bytes.append(stage_memory(task, stage))
    hops = [task.hop(here.kind, there.kind) for here, there in pairwise(stages)]
    link_ms = [size * hop.ms_per_byte for size, hop in zip(crossing[1:], hops, strict=False)]
    latency = sum(stage_ms) + sum(hop.ms for hop in hops) + sum(link_ms)
    latency += task.ends_ms(stages[0].kind, stages[-1].kind)
    value = latency if task.objective == "latency" else max(*stage_ms, *link_ms, 0.0)
    return Partition(
        tuple(stages), tuple(stage_ms), tuple(stage_bytes), tuple(crossing), tuple(link_ms), latency, value
    ).proven(0.0, exact=False)


def stage_memory(task: Task, stage: Stage) -> int:
    """Bytes that a stage needs."""
    own, shared = task.sized(stage.kind)
    held = set(stage.items)
    once = sum(each.size for each in shared if not held.isdisjoint(each.readers))
    return task.runtime_bytes + sum(own[item] for item in held) + once


def objections(task: Task, stages: Sequence[Stage]) -> list[str]:
    """Why these stages may not be; empty when they may. Memory is one reason among them.

    ``order``: something is read before it is made; ``crosses``: a value crosses a cut that may not; ``barred``: an
    item is on a kind that may not hold it; ``kinds``: a value is touched by a kind that may not; ``memory``;
    ``count``: more nodes of a kind than there are.
    """
    found = set()
    last, where = len(stages), {item: number for number, stage in enumerate(stages) for item in stage.items}
    where |= {-1: 0, len(task.item_bytes): last - 1}
    for value in task.values:
        if not value.readers and value.maker < 0:
            continue
        start, reads = where[value.maker], [where[reader] for reader in value.readers]
        stop = max(reads, default=start)
        if any(at < start for at in reads):
            found.add("order")
        if stop > start and not value.crosses:
            found.add("crosses")
        if value.kinds is not None and any(stage.kind not in value.kinds for stage in stages[start : stop + 1]):
            found.add("kinds")
    for stage in stages:
        kind = task.kinds[stage.kind]
        if not kind.barred.isdisjoint(stage.items):
            found.add("barred")
        if stage_memory(task, stage) > kind.memory:
            found.add("memory")
    if not task.there_are([sum(stage.kind == number for stage in stages) for number in range(len(task.kinds))]):
        found.add("count")
    return sorted(found)


def _crossing(task: Task, stages: Sequence[Stage]) -> list[int]:
    """Bytes of the values that cross before the first stage, between the stages, and behind the last."""
    where = {item: number for number, stage in enumerate(stages) for item in stage.items}
    assert all(stage.items for stage in stages), "a stage has items"
    assert len(where) == len(task.item_bytes) == sum(len(stage.items) for stage in stages), "each in one of them"
    where |= {-1: -1, len(task.item_bytes): len(stages)}
    change = [0] * (len(stages) + 2)
    for value in task.values:
        readers = value.readers
        if readers:
            start = where[value.maker]
            stop = where[readers[0]] if len(readers) == 1 else max(where[reader] for reader in readers)
            if stop > start:
                change[start + 1] += value.size
                change[stop + 1] -= value.size
    return list(accumulate(change))[:-1]
