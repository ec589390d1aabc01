"""The cost tables that were given: of this model, and measured with what will run."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path

import msgspec

from ruvcompile.errors import InputError, did_you_mean
from ruvrun.backends import BACK_ENDS
from ruvrun.costs import NOISY, CostTable, load_costs, merge
from ruvrun.profile.places import MORE_ROWS

_LABELS = 4
_VERSIONED = ("ruvrun", "onnxruntime", "openvino")


def read_given(
    paths: Sequence[Path], keys: Collection[str], machines: Mapping[str, str], most_rows: int = 0
) -> tuple[CostTable, tuple[str, ...]]:
    """All rows of the tables at ``paths``, and sentences about what a person should know of them.

    A table may hold more than the rows of one model, links or overheads alone, and rows of several machines. One that
    has units, none of which this model has, was given by mistake: nothing would be said of it and all be measured anew.

    Args:
        paths: as they were given; of equal rows the last one counts.
        keys: of the model's units.
        machines: of each target of the fleet, as ``platform.machine()`` says there.
        most_rows: of a decoder's largest step.

    Raises:
        InputError: ``costs-of-another-model``, ``costs-empty``, ``costs-backend-unknown``; or a file is no cost table.
    """
    tables, notes = [], []
    for path in paths:
        table = load_costs(path)
        if not (table.unit or table.overhead or table.stage or table.link or table.rate):
            hint = "it may have been cut off on its way: copy it again, or measure again"
            raise InputError("costs-empty", f"{path} holds no costs", hint=hint)
        _require_known(path, table)
        if table.unit and not any(row.key in keys for row in table.unit):
            labels = list(dict.fromkeys(row.label for row in table.unit))
            more = ", ..." if len(labels) > _LABELS else ""
            raise InputError(
                "costs-of-another-model",
                f"{path} is of another model: none of its {len(labels)} parts is one of this",
                context=[f"it has {', '.join(labels[:_LABELS])}{more}"],
                hint="give the table of this model at the same --quant and --shape, or leave --costs out",
            )
        found = [*_other_versions(table), *_other_machines(table, machines), *_few_rows(table, keys, most_rows)]
        found += _noisy(table, keys, machines)
        notes += [f"{path}: {told}" for told in dict.fromkeys(found)]
        tables.append(table)
    parts = [_part(table, scaled=scaled) for scaled in (True, False) for table in tables]
    return merge(parts), tuple(notes)


def _part(table: CostTable, *, scaled: bool) -> CostTable:
    """The rows of a table that were worked out, or the others, which count before those of any table."""
    unit = [row for row in table.unit if table.scaled(row) is scaled]
    overhead = [row for row in table.overhead if table.scaled(row) is scaled]
    if scaled:
        return CostTable(provenance=table.provenance, unit=unit, overhead=overhead)
    return msgspec.structs.replace(table, unit=unit, overhead=overhead)


def _require_known(path: Path, table: CostTable) -> None:
    """Nobody would ever ask for the rows of a back end that there is not."""
    for kind in ("unit", "overhead", "stage", "rate"):
        for number, row in enumerate(getattr(table, kind)):
            if row.backend not in BACK_ENDS:
                raise InputError(
                    "costs-backend-unknown",
                    f"{path}: [[{kind}]] {number} is of the unknown back end {row.backend!r}",
                    hint=did_you_mean(row.backend, BACK_ENDS),
                )


def _other_versions(table: CostTable) -> Iterator[str]:
    """What was measured with another version than the one that is here; what is not here is not compared."""
    for source in table.provenance:
        for name in _VERSIONED:
            found = re.search(rf"\b{name} ([\w.+-]+)", source.software)
            here = _version(name)
            if found and here and found.group(1) != here:
                yield f"measured with {name} {found.group(1)}, here is {here}: measure again if the plan does not hold"


def _other_machines(table: CostTable, machines: Mapping[str, str]) -> Iterator[str]:
    """Rows of a target that were measured elsewhere: a probe runs on any machine, and not only on one of its kind."""
    for row in table.unit:
        source, wanted = table.provenance[row.source], machines.get(row.target)
        if wanted and not source.machine.startswith(wanted) and not table.scaled(row):
            yield f"costs of {row.target} were measured on {source.machine}, and it has {wanted}: measure there"


def _noisy(table: CostTable, keys: Collection[str], machines: Mapping[str, str]) -> Iterator[str]:
    """Kinds of machines whose steps took now so long and now so long."""
    worst: dict[str, float] = {}
    for row in table.unit:
        if row.key in keys and row.target in machines and not table.scaled(row):
            worst[row.target] = max(row.spread, worst.get(row.target, 0.0))
    for target, spread in worst.items():
        if spread > NOISY:
            yield f"noisy: steps on {target} spread by {100 * spread:.0f} %: measure again when less runs on it"


def _few_rows(table: CostTable, keys: Collection[str], wanted: int) -> Iterator[str]:
    """Curves that end before the steps there will be; where they go on is not measured."""
    wanted = min(wanted, MORE_ROWS[-1])
    for row in table.unit:
        most = max((point.rows for point in row.curve if point.tokens == 1), default=wanted)
        if row.key in keys and most < wanted:
            yield (
                f"steps of more than {most} sequences were not measured on {row.target}, and there may be some of "
                f"{wanted}: measure again with `ruvcompile profile --streams {wanted}`, or there with `--rows {wanted}`"
            )


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""
