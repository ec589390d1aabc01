"""Targets: kinds of machines, described by data in ``targets/<id>/target.toml``.

The frozen dataclass ``Target`` is the schema: a field without a default is a key that must be there. Data is
checked when it is loaded, so a target that loads is a target that is complete. ``data_root`` finds the data:
``_targets`` beside this module in an installed wheel, ``../targets`` in a checkout. A folder given with
``--targets-dir`` is looked into first.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path
from typing import Any

from ruvcompile.configuration import read_configuration, unknown_keys
from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean, raise_all
from ruvcompile.fleet import HOST
from ruvcompile.options import Options
from ruvcompile.quantities import parse_size

FILE = "target.toml"
SHARED = "_shared"
TEMPLATES = "templates"
NATIVE = "native"
FIGURE_KINDS = ("theoretical", "published", "measured")
_ALL = ("f32", "f16", "u8")
BACKENDS: Mapping[str, tuple[str, ...]] = {
    "onnxruntime": ("f32",),
    "openvino": _ALL,
    "openvino-gpu": ("f32", "f16"),
    "openvino-npu": ("f32", "f16"),
}
"""Back ends, and the types of keys and values that each of them has."""

PRECISIONS: Mapping[str, tuple[str, ...]] = {"openvino": ("f32", "bf16")}
"""Back ends that compute with other numbers than those of 32 bits when they are asked to."""

BACKEND_NAMES = {
    "onnxruntime": "ONNX Runtime",
    "openvino": "OpenVINO",
    "openvino-gpu": "OpenVINO on a GPU",
    "openvino-npu": "OpenVINO on an NPU",
}
"""What people call them."""


@dataclass(frozen=True)
class Figure:
    """A number about a kind of machine, and where it is from: ``theoretical``, ``published`` by others, ``measured``.

    Those that costs are scaled by are of all its cores together, and have the names of ``ruvrun.profile.rates``.
    """

    name: str
    value: float
    unit: str
    kind: str
    source: str
    date: str


@dataclass(frozen=True)
class Target:
    """One kind of machine.

    ``arch`` is as ``platform.machine()`` says, or ``native``; ``features`` are CPU flags as in /proc/cpuinfo.
    Of several ``backends`` the plan takes the faster one for each stage; a file with one may call it ``backend``.
    The first of ``kv_types`` is the default. ``memory`` holds the bytes installed in the models that are
    sold, the one to assume first; empty: asked of this machine. ``golden_bound`` is how far a stage's outputs
    may be from those of the build machine, as a fraction of the largest absolute value. ``devices`` are the
    kernel's names of what a stage opens besides files (/proc/devices), ``drivers`` the packages that make it work.
    ``notes`` are sentences for whoever sets such a machine up.
    """

    name: str
    folder: Path
    title: str
    backends: tuple[str, ...]
    arch: str
    features: tuple[str, ...]
    quants: tuple[str, ...]
    kv_types: tuple[str, ...]
    memory: tuple[int, ...]
    packages: tuple[str, ...]
    golden_bound: float
    cores: int = 0
    devices: tuple[str, ...] = ()
    drivers: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    figures: tuple[Figure, ...] = ()

    @property
    def backend(self) -> str:
        """The back end, of several the first."""
        return self.backends[0]

    def on(self, backend: str) -> Target:
        """The same with this back end alone, and the types of keys and values that it has."""
        kinds = tuple(kind for kind in self.kv_types if kind in BACKENDS[backend])
        return replace(self.among((backend,)), kv_types=kinds)

    def among(self, backends: tuple[str, ...]) -> Target:
        """The same with these back ends alone, and the packages they need."""
        others = {f"ruvrun[{other}]" for other in self.backends if other not in backends}
        packages = tuple(package for package in self.packages if package not in others)
        return replace(self, backends=backends, packages=packages)

    @property
    def machine(self) -> str:
        """The architecture, ``native`` resolved to the one this runs on."""
        return platform.machine() if self.arch == NATIVE else self.arch

    @property
    def installed(self) -> int:
        """Bytes of memory to assume where the fleet does not say: the first model's, or this machine's."""
        return self.memory[0] if self.memory else os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")

    @property
    def kv_type(self) -> str:
        """The type of keys and values: what was asked for (``fleet_targets``), else the default."""
        return self.kv_types[0]

    def figure(self, name: str) -> Figure | None:
        """The figure of that name, if the target has one."""
        return next((figure for figure in self.figures if figure.name == name), None)

    def template(self, name: str) -> Path:
        """The file of a template: the target's own if it has one, else the shared one."""
        own = self.folder / TEMPLATES / name
        return own if own.is_file() else data_root() / SHARED / TEMPLATES / name


def data_root() -> Path:
    """The folder that holds the targets that come with the compiler."""
    installed = Path(__file__).with_name("_targets")
    return installed if installed.is_dir() else Path(__file__).parent.parent / "targets"


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


def fleet_targets(options: Options) -> dict[str, Target]:
    """The targets of the fleet's nodes by name, once what was asked is known to be possible on each of them.

    Of key/value types a target then has the one that was asked for, and of back ends those that have it.
    """
    targets = {name: load_target(name, options.targets_dir) for name in {node.target for node in options.fleet.nodes}}
    problems: list[RuvError] = []
    for name, target in sorted(targets.items()):
        for flag, asked, has in (
            ("quant", options.quant, target.quants),
            ("kv-type", options.kv_type, target.kv_types),
            ("backend", options.backend, target.backends),
        ):
            if asked not in (None, "auto") and asked not in has:
                problems.append(
                    UsageError(
                        f"{flag}-unsupported",
                        f"target {name} has no --{flag} {asked}",
                        hint=f"it has: {', '.join(has)}",
                    )
                )
    raise_all(problems)
    found = {}
    for name, target in targets.items():
        backends = target.backends if options.backend in (None, "auto") else (options.backend,)
        found[name] = _with_kv_type(_with_precision(target, backends, options.precision or "f32"), options.kv_type)
    return found


def _with_precision(target: Target, backends: tuple[str, ...], asked: str) -> Target:
    """The target with those of these back ends that compute with numbers of that precision; one has to."""
    able = tuple(backend for backend in backends if asked in PRECISIONS.get(backend, ("f32",)))
    if not able:
        what = f"target {target.name} has no --precision {asked} on {', '.join(backends)}"
        raise UsageError("precision-unsupported", what, hint="it has: f32")
    # With 16 bits, attention has keys and values of eight, and no others.
    return replace(target.among(able), kv_types=target.kv_types if asked == "f32" else ("u8",))


def _with_kv_type(target: Target, asked: str | None) -> Target:
    """The target with the back ends that have this type of keys and values; None: the target's own.

    Raises:
        UsageError: none of them has.
    """
    wanted = asked or target.kv_type
    backends = tuple(backend for backend in target.backends if wanted in BACKENDS[backend])
    if not backends or wanted not in target.kv_types:
        names = ", ".join(target.backends)
        hint = f"it has: {', '.join(kind for kind in target.kv_types if kind in BACKENDS[target.backend])}"
        raise UsageError("kv-type-unsupported", f"{names} has no --kv-type {wanted}", hint=hint)
    return replace(target.among(backends), kv_types=(wanted,))


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
        if backend not in BACKENDS:
            hint = did_you_mean(backend, BACKENDS)
            problems.append(InputError("target-wrong", f"{path}: unknown back end {backend!r}", hint=hint))
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
