"""How the values of ``target.toml`` are read: whatever is wrong is noted, so that all of it is told at once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from datetime import date
from typing import Any

from ruvcompile.configuration import unknown_keys
from ruvcompile.errors import InputError, RuvError, did_you_mean
from ruvcompile.quantities import parse_size
from ruvcompile.targets.nouns import FIGURE_KINDS, FIGURES, Accelerator, Figure

_HINT = "compare with another target"
_KINDS = {
    "str": "text in quotes",
    "int": "a whole number",
    "float": "a number above zero",
    "tuple[str, ...]": "a list of texts",
    "tuple[int, ...]": "a list of sizes",
}


def read_fields(
    raw: Mapping[str, Any], schema: Iterable[Field[Any]], where: str, problems: list[RuvError]
) -> dict[str, Any]:
    """The values of a table as the fields' types; unknown keys, missing ones and wrong values are noted."""
    known = {field.name: field for field in schema}
    problems += unknown_keys(raw, known, where)
    values: dict[str, Any] = {}
    for key, field in known.items():
        if key in raw:
            values[key] = _value(raw[key], str(field.type), f"{where}: {key}", problems)
        elif field.default is MISSING:
            problems.append(InputError("target-wrong", f"{where}: {key} is missing", hint=f"add {key} ="))
    return values


def read_figures(entries: Any, where: str, problems: list[RuvError]) -> tuple[Figure, ...]:
    """The tables ``[[figure]]``."""
    if not isinstance(entries, list):
        problems.append(InputError("target-wrong", f"{where}: figure is not a list of tables", hint="write [[figure]]"))
        return ()
    places = (f"{where}: figure {index}" for index in range(len(entries)))
    made = (_figure(entry, place, problems) for entry, place in zip(entries, places, strict=True))
    found = tuple(figure for figure in made if figure is not None)
    names = [figure.name for figure in found]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.append(
            InputError("target-wrong", f"{where}: figure {name} is there twice", hint="keep the better one")
        )
    return found


def read_accelerator(raw: Any, where: str, problems: list[RuvError]) -> Accelerator | None:
    """The table ``[accelerator]``; None where there is none, or it is wrong."""
    if raw is None:
        return None
    if not isinstance(raw, dict):
        problems.append(InputError("target-wrong", f"{where} is not a table", hint="write [accelerator]"))
        return None
    before = len(problems)
    values = read_fields(raw, fields(Accelerator), where, problems)
    problems += _not_a_day(values.get("date") or "", where)
    problems += [
        InputError("target-wrong", f"{where}: {key} is empty", hint=_HINT)
        for key in ("operators", "worth", "steps", "source", "date", "command")
        if key in values and not (values[key] and str(values[key]).strip())
    ]
    if len(problems) > before:
        return None
    made = Accelerator(**values)
    for name in made.worth:
        if name not in made.operators:
            hint = did_you_mean(name, made.operators)
            problems.append(InputError("target-wrong", f"{where}: {name} is worth it and not taken", hint=hint))
    for line in (*made.steps, made.result):
        if "{part}" not in line:
            problems.append(InputError("target-wrong", f"{where}: {line!r} names no part", hint="write {part}"))
    return made


def _value(value: Any, kind: str, where: str, problems: list[RuvError]) -> Any:
    """A value of the file as the field's type, ``kind`` (annotations are text here); problems are noted."""
    try:
        if kind == "tuple[int, ...]" and isinstance(value, list):
            return tuple(parse_size(entry) for entry in value)
        if kind == "tuple[str, ...]" and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        if {"str": str, "int": int}.get(kind) is type(value):
            return value
        if kind == "float" and type(value) in (int, float) and value > 0:
            return float(value)
    except (TypeError, ValueError) as error:
        problems.append(InputError("target-wrong", f"{where}: {error}", hint=_HINT))
        return None
    problems.append(InputError("target-wrong", f"{where} = {value!r} is not {_KINDS[kind]}", hint=_HINT))
    return None


def _figure(entry: Any, where: str, problems: list[RuvError]) -> Figure | None:
    kinds: Mapping[str, tuple[type, ...]] = {field.name: (str,) for field in fields(Figure)} | {"value": (int, float)}
    right = isinstance(entry, dict) and entry.keys() == kinds.keys()
    if not right or not all(isinstance(entry[key], kind) for key, kind in kinds.items()):
        problems.append(
            InputError("target-wrong", f"{where} needs {', '.join(kinds)}", hint="say where a number is from")
        )
        return None
    made = Figure(**{**entry, "value": float(entry["value"])})
    if made.name not in FIGURES:
        hint = did_you_mean(made.name, FIGURES)
        problems.append(InputError("target-wrong", f"{where}: unknown figure {made.name!r}", hint=hint))
    elif made.unit != FIGURES[made.name]:
        hint = f"it is {FIGURES[made.name]}"
        problems.append(InputError("target-wrong", f"{where}: unit {made.unit!r} of {made.name}", hint=hint))
    if made.kind not in FIGURE_KINDS:
        hint = did_you_mean(made.kind, FIGURE_KINDS)
        problems.append(InputError("target-wrong", f"{where}: kind {made.kind!r}", hint=hint))
    if not 0 < made.value < float("inf"):
        problems.append(InputError("target-wrong", f"{where}: value {made.value}", hint="it is more than zero"))
    for key in ("source", "date"):
        if not getattr(made, key).strip():
            hint = "say where a number is from, and when you looked"
            problems.append(InputError("target-wrong", f"{where}: {key} is empty", hint=hint))
    problems += _not_a_day(made.date.strip(), where)
    return made


def _not_a_day(text: str, where: str) -> list[RuvError]:
    """Of a date that is there: whether it says when somebody looked."""
    try:
        date.fromisoformat(text or date.min.isoformat())
    except ValueError:
        return [InputError("target-wrong", f"{where}: date {text!r} is no day", hint="as in 2026-11-30")]
    return []
