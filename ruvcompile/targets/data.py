"""What ``target.toml`` holds, read and checked: everything that is wrong with it is told at once.

A folder given with ``--targets-dir`` is looked into first, then ``targets/`` where the command is given.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement

from ruvcompile.configuration import read_configuration
from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean, raise_all
from ruvcompile.targets.nouns import FILE, HERE, Target, data_root
from ruvcompile.targets.values import read_accelerator, read_fields, read_figures
from ruvrun.backends import BACK_ENDS, KV_TYPES

_PYTHON, _GLIBC = re.compile(r"3\.\d+"), re.compile(r"2\.\d+")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def target_names(extra: Path | None = None) -> dict[str, Path]:
    """Every target that can be named, with its folder.

    Those of ``extra`` (``--targets-dir``) come first, then those in ``targets/`` where the command is given.
    """
    if extra is not None and not extra.is_dir():
        raise InputError("file-missing", f"no directory {extra}", hint="check --targets-dir")
    found: dict[str, Path] = {}
    for root in [*([extra] if extra else []), HERE, data_root()]:
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


def _read(name: str, folder: Path) -> Target:
    path = folder / FILE
    raw = read_configuration(path, "target")
    problems: list[RuvError] = []
    if not _NAME.fullmatch(name):
        hint = "letters, digits, dot, dash, underscore: nodes are named after it"
        problems.append(InputError("target-wrong", f"{folder}: a folder of that name is no target", hint=hint))
    figures = read_figures(raw.pop("figure", []), str(path), problems)
    accelerator = read_accelerator(raw.pop("accelerator", None), f"{path}: accelerator", problems)
    if isinstance(raw.get("backend"), str) and "backends" not in raw:
        raw["backends"] = [raw.pop("backend")]
    apart = ("name", "folder", "figures", "accelerator")
    values = read_fields(raw, (field for field in fields(Target) if field.name not in apart), str(path), problems)
    for backend in values.get("backends") or ():
        if backend not in BACK_ENDS:
            hint = did_you_mean(backend, BACK_ENDS)
            problems.append(InputError("target-wrong", f"{path}: unknown back end {backend!r}", hint=hint))
    for kind in values.get("kv_types") or ():
        if kind not in KV_TYPES:
            hint = did_you_mean(kind, KV_TYPES)
            problems.append(InputError("target-wrong", f"{path}: unknown key/value type {kind!r}", hint=hint))
    for key in ("backends", "arch", "quants", "kv_types", "title"):
        if key in values and not values[key]:
            problems.append(InputError("target-wrong", f"{path}: {key} is empty", hint="compare with another target"))
    problems += _unlike(values, str(path))
    raise_all(problems)
    return Target(name=name, folder=folder, figures=figures, accelerator=accelerator, **values)


def _unlike(values: Mapping[str, Any], where: str) -> list[RuvError]:
    """What has to be of a certain form: Pythons, the C library's version, requirements, sizes of pages."""
    problems: list[RuvError] = []
    for key, form, example in (("pythons", _PYTHON, "3.11"), ("glibc", _GLIBC, "2.36")):
        given = values.get(key) or ()
        for entry in (given,) if isinstance(given, str) else given:
            if not form.fullmatch(entry):
                what = f"{where}: {key} has {entry!r}"
                problems.append(InputError("target-wrong", what, hint=f"as in {example!r}"))
    for entry in values.get("packages") or ():
        try:
            Requirement(entry)
        except InvalidRequirement:
            what = f"{where}: packages has {entry!r}"
            problems.append(InputError("target-wrong", what, hint="as in ruvrun[onnxruntime] or onnxruntime>=1.32"))
    for size in values.get("pages") or ():
        if size < 4096 or size & (size - 1):
            what = f"{where}: pages has {size} bytes"
            problems.append(InputError("target-wrong", what, hint="as in 4KiB, 16KiB or 64KiB"))
    return problems
