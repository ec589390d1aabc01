"""What ``target.toml`` holds, read and checked: everything that is wrong with it is told at once.

A folder given with ``--targets-dir`` is looked into first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from ruvcompile.configuration import read_configuration, unknown_keys
from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean, raise_all
from ruvcompile.fleet import HOST
from ruvcompile.quantities import parse_size
from ruvcompile.targets.nouns import FIGURE_KINDS, FILE, Figure, Target, data_root
from ruvrun.executors.backends import BACK_ENDS, KV_TYPES


def target_names(extra: Path | None = None) -> dict[str, Path]:
    """Every target that can be named, with its folder; those of ``extra`` (``--targets-dir``) come first."""
    if extra is not None and not extra.is_dir():
        raise InputError("file-missing", f"no directory {extra}", hint="check --targets-dir")
    found: dict[str, Path] = {}
    for root in [*([extra] if extra else []), data_root()]:
        for path in sorted(root.glob(f"*/{FILE}")):
            found.setdefault(path.parent.name, path.parent)
    return found


def load_target(name: str, extra: Path | None = None) -> Target:
    """Load one target by name, checked.

    Raises:
        UsageError: there is none of that name.
        InputError: its data is wrong; everything that is wrong is told at once.
    """
    known = target_names(extra)
    if name not in known:
        raise UsageError("target-unknown", f"unknown target {name!r}", hint=did_you_mean(name, known))
    return _read(name, known[name])


def check_targets(extra: Path | None = None) -> list[RuvError]:
    """Everything that is wrong with any target's data or templates; empty when all is well."""
    problems: list[RuvError] = []
    for name, folder in target_names(extra).items():
        try:
            _read(name, folder)
        except RuvError as problem:
            problems.append(problem)
    if HOST not in target_names(extra):
        problems.append(InputError("target-missing", f"there is no target {HOST!r}", hint="install ruvcompile again"))
    return problems


def _read(name: str, folder: Path) -> Target:
    path = folder / FILE
    raw = read_configuration(path, "target")
    problems: list[RuvError] = []
    entries = raw.pop("figure", [])
    if not isinstance(entries, list):
        problems.append(InputError("target-wrong", f"{path}: figure is not a list of tables", hint="write [[figure]]"))
        entries = []
    figures = tuple(
        figure for index, entry in enumerate(entries) if (figure := _figure(entry, f"{path}: figure {index}", problems))
    )
    schema = {field.name: field for field in fields(Target) if field.name not in ("name", "folder", "figures")}
    if isinstance(raw.get("backend"), str) and "backends" not in raw:
        raw["backends"] = [raw.pop("backend")]
    problems += unknown_keys(raw, schema, str(path))
    values: dict[str, Any] = {}
    for key, field in schema.items():
        if key in raw:
            values[key] = _value(raw[key], str(field.type), f"{path}: {key}", problems)
        elif field.default is MISSING:
            problems.append(InputError("target-wrong", f"{path}: {key} is missing", hint=f"add {key} ="))
    for backend in values.get("backends") or ():
        if backend not in BACK_ENDS:
            hint = did_you_mean(backend, BACK_ENDS)
            problems.append(InputError("target-wrong", f"{path}: unknown back end {backend!r}", hint=hint))
    for kind in values.get("kv_types") or ():
        if kind not in KV_TYPES:
            hint = did_you_mean(kind, KV_TYPES)
            problems.append(InputError("target-wrong", f"{path}: unknown key/value type {kind!r}", hint=hint))
    for key in ("backends", "arch", "quants", "kv_types"):
        if key in values and not values[key]:
            problems.append(InputError("target-wrong", f"{path}: {key} is empty", hint="compare with another target"))
    raise_all(problems)
    return Target(name=name, folder=folder, figures=figures, **values)


def _value(value: Any, kind: str, where: str, problems: list[RuvError]) -> Any:
    """A value of the file as the field's type, ``kind`` (annotations are text here); problems are noted."""
    try:
        if kind == "tuple[int, ...]":
            return tuple(parse_size(entry) for entry in value)
        if kind == "tuple[str, ...]" and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
            return tuple(value)
        if {"str": str, "int": int}.get(kind) is type(value):
            return value
        if kind == "float" and type(value) in (int, float) and value > 0:
            return float(value)
    except (TypeError, ValueError) as error:
        problems.append(InputError("target-wrong", f"{where}: {error}", hint="compare with another target"))
        return None
    problems.append(
        InputError("target-wrong", f"{where} = {value!r} is not a {kind}", hint="compare with another target")
    )
    return None


def _figure(entry: Any, where: str, problems: list[RuvError]) -> Figure | None:
    kinds: Mapping[str, tuple[type, ...]] = {field.name: (str,) for field in fields(Figure)} | {"value": (int, float)}
    right = isinstance(entry, dict) and entry.keys() == kinds.keys()
    if not right or not all(isinstance(entry[key], kind) for key, kind in kinds.items()):
        problems.append(
            InputError("target-wrong", f"{where} needs {', '.join(kinds)}", hint="say where a number is from")
        )
        return None
    if entry["kind"] not in FIGURE_KINDS:
        hint = did_you_mean(entry["kind"], FIGURE_KINDS)
        problems.append(InputError("target-wrong", f"{where}: kind {entry['kind']!r}", hint=hint))
    if not 0 < entry["value"] < float("inf"):
        problems.append(InputError("target-wrong", f"{where}: value {entry['value']}", hint="it is more than zero"))
    return Figure(**{**entry, "value": float(entry["value"])})
