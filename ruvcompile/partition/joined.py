"""A task whose cuts are known: what is left is who holds which stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ruvcompile.partition.task import Shared, Task, Value


def joined(task: Task, stages: Sequence[Sequence[int]]) -> Task:
    """The same task where the items of each stage are one: all that is left to choose is who holds which."""
    where = {item: number for number, items in enumerate(stages) for item in items}
    where |= {-1: -1, len(task.item_bytes): len(stages)}
    values = []
    for value in task.values:
        maker = where[value.maker]
        readers = tuple(sorted({where[reader] for reader in value.readers} - {maker}))
        if readers or value.kinds is not None:
            values.append(replace(value, maker=maker, readers=readers))
    # Later stages come later, whether or not they read anything of the one before.
    values += [Value(number, (number + 1,), 0) for number in range(len(stages) - 1)]
    kinds = tuple(
        replace(
            kind,
            item_ms=tuple(sum(kind.item_ms[item] for item in items) for items in stages),
            barred=frozenset(where[item] for item in kind.barred),
            item_bytes=tuple(sum(kind.item_bytes[item] for item in items) for items in stages)
            if kind.item_bytes
            else (),
        )
        for kind in task.kinds
    )
    return replace(
        task,
        kinds=kinds,
        item_bytes=tuple(sum(task.item_bytes[item] for item in items) for items in stages),
        values=tuple(values),
        shared=tuple(
            Shared(tuple(sorted({where[reader] for reader in each.readers})), each.size) for each in task.shared
        ),
    )
