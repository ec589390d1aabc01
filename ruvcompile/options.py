"""What a build was asked to do: flags over ``ruvcompile.toml`` over defaults, checked, as one frozen value.

``resolve`` is the only place where the three meet. Every default it applies is noted in
``Options.defaults``, so that the command line can print it with ``(default)``; None in a field means that
the choice depends on the model or the plan and is made, and printed, further down.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ruvcompile.configuration import not_in_this_version
from ruvcompile.errors import InputError, RuvError, UsageError, did_you_mean, raise_all
from ruvcompile.fleet import Fleet, FleetNode, Link, load_fleet, make_fleet
from ruvcompile.option_file import FILE, LATER, read_options
from ruvcompile.spelled import dashed, is_text, listed, pythons, shapes
from ruvrun.backends import KV_TYPES, PRECISIONS

KEYS_DIR = "fleet.keys"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "quant": ("auto", "none", "fp16", "int8", "int4", "int2"),
    "activations": ("int8", "float"),
    "kv_type": tuple(KV_TYPES),
    "precision": PRECISIONS,
    "link_type": ("f32", "f16", "auto"),
    "backend": ("auto", "onnxruntime", "openvino"),
    "objective": ("throughput", "latency"),
}
DEFAULTS: Mapping[str, Any] = {
    "nodes": "1",
    "quant": "auto",
    "activations": "int8",
    "objective": "throughput",
    "prompt_tokens": 512,
    "output": "dist",
}
# Defaults that say nothing about any other graph: told when the model is known to be a decoder.
OF_DECODERS = ("prompt-tokens", "activations")

PLAIN = (
    *("stages", "replicas", "quant", "activations", "kv_type", "precision", "link_type", "backend"),
    *("context", "streams", "prompt_tokens", "objective", "name", "users", "max_tokens"),
)
"""Options that are taken as they come."""

MOST_USERS, _LONGEST_NAME, _MOST = 100_000, 200, 2**31 - 1


@dataclass(frozen=True)
class Options:
    """All options of ``build`` and ``plan``.

    ``context``, ``streams``, ``kv_type``, ``precision``, ``backend``, ``stages``, ``replicas`` and ``name`` are None
    where they follow from the model, the target or the plan. ``shapes`` maps an input's name to the sizes that were
    given for it; ``wheels`` are the Pythons that bundles get wheels for; ``keys`` is the directory of the fleet's keys.
    ``simulate`` is asked of ``plan`` alone, for ``users`` at once and answers of ``max_tokens`` (None: as it assumes
    them). ``defaults`` holds (name, shown value) of every default that was applied here.
    """

    model: Path
    fleet: Fleet
    stages: int | None = None
    replicas: int | None = None
    cut: tuple[str, ...] = ()
    quant: str = "auto"
    activations: str = "int8"
    kv_type: str | None = None
    precision: str | None = None
    link_type: str = "f32"
    backend: str | None = None
    context: int | None = None
    streams: int | None = None
    prompt_tokens: int = 512
    objective: str = "throughput"
    inputs: Path | None = None
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    costs: tuple[Path, ...] = ()
    wheels: tuple[str, ...] = ()
    name: str | None = None
    new_keys: bool = False
    simulate: bool = False
    users: int | None = None
    max_tokens: int | None = None
    output: Path = Path("dist")
    targets_dir: Path | None = None
    defaults: tuple[tuple[str, str], ...] = ()

    @property
    def keys(self) -> Path:
        """Where the fleet's keys are kept: beside the fleet file, else in the build's directory."""
        return (self.fleet.path.parent if self.fleet.path else self.output) / KEYS_DIR


def resolve(flags: Mapping[str, Any], directory: Path = Path()) -> Options:
    """Merge flags, ``ruvcompile.toml`` in ``directory`` and defaults into one checked ``Options``.

    Args:
        flags: option name (underscores) to what the command line gave; None and empty mean not given.
        directory: where ``ruvcompile.toml`` is looked for; it may be missing.

    Raises:
        UsageError: flags that contradict each other, unknown names, options this version does not have.
        InputError: the configuration, the fleet file or a file that was named is missing or wrong.
    """
    asked = _merge(flags, directory / FILE)
    problems: list[RuvError] = [not_in_this_version(_flag(key)) for key in LATER if asked.get(key)]
    fleet, defaults = _fleet(asked, problems)
    chosen = {key: asked.get(key, default) for key, default in DEFAULTS.items() if key != "nodes"}
    defaults += [(dashed(key), str(value)) for key, value in chosen.items() if key not in asked]
    asked |= chosen
    problems += _check(asked)
    sizes = shapes(asked.get("shape", ()), problems)
    wheels = pythons(asked.get("wheels", ()), problems)
    raise_all(problems)
    assert fleet is not None, "every way to get here without one is a problem"
    return Options(
        model=Path(str(asked["model"])),
        fleet=fleet,
        cut=tuple(listed(asked.get("cut", ()))),
        inputs=Path(asked["inputs"]) if "inputs" in asked else None,
        shapes=sizes,
        wheels=wheels,
        costs=tuple(Path(entry) for entry in listed(asked.get("costs", ()))),
        new_keys=bool(asked.get("new_keys")),
        simulate=bool(asked.get("simulate")),
        output=Path(asked["output"]),
        targets_dir=Path(asked["targets_dir"]) if "targets_dir" in asked else None,
        defaults=tuple(defaults),
        **{key: asked[key] for key in PLAIN if key in asked},
    )


def _merge(flags: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """Flags over the file at ``path``. A fleet and a target exclude each other, so a flag sets the file's aside."""
    for key, value in flags.items():
        if value == "" and key != "model":  # an unset variable of a script, and the default would be taken
            told = f"{'-o' if key == 'output' else _flag(key)} says nothing"
            raise UsageError(f"{dashed(key)}-missing", told, hint="leave it out for the default")
    given = {key: value for key, value in flags.items() if value is not False and value not in (None, (), "")}
    configured = read_options(path) if os.path.lexists(path) else {}
    aside: tuple[str, ...] = ()
    if "fleet" in given:
        aside = ("target", "nodes")
    elif "target" in given or "nodes" in given:
        aside = ("fleet",)
    return {key: value for key, value in configured.items() if key not in aside} | given


def _check(asked: Mapping[str, Any]) -> list[RuvError]:
    """Everything that is wrong with names, numbers and files, before any of them is used."""
    problems: list[RuvError] = []
    model = str(asked.get("model", ""))
    if not model:
        hint = f"ruvcompile build MODEL ..., or model = in {FILE}"
        problems.append(UsageError("model-missing", "no model was named", hint=hint))
    elif not _is_there(model):
        problems.append(InputError("file-missing", f"no model at {model}", hint=_model_hint(model)))
    name = str(asked.get("name", ""))
    if not name.isprintable() or len(name) > _LONGEST_NAME:
        what = f"--name {name[:40]!r} is no name: nothing invisible, and at most {_LONGEST_NAME} characters"
        problems.append(UsageError("name-invalid", what, hint="as in --name smollm2-chat"))
    for key, known in CHOICES.items():
        value = asked.get(key, known[0])
        if value not in known:
            hint = did_you_mean(str(value), known)
            problems.append(UsageError(f"{dashed(key)}-unknown", f"unknown {_flag(key)} {value!r}", hint=hint))
    for key, says in (("users", "for whom"), ("max_tokens", "what answers")):
        if key in asked and not asked.get("simulate"):
            told = f"{_flag(key)} says {says} to simulate"
            problems.append(UsageError(f"{dashed(key)}-alone", told, hint="add --simulate"))
    for key in ("stages", "replicas", "context", "streams", "prompt_tokens", "users", "max_tokens"):
        value = asked.get(key, 1)
        most = MOST_USERS if key == "streams" else _MOST
        if type(value) is not int or not 1 <= value <= most:
            too = f"more than {most}" if type(value) is int and value > most else "not 1 or more"
            told = f"{_flag(key)} {value} is {too}"
            problems.append(UsageError(f"{dashed(key)}-invalid", told, hint="give a number"))
    if type(users := asked.get("users", 1)) is int and users > MOST_USERS:
        told = f"--users {users} is more than a simulation is for, {MOST_USERS}"
        problems.append(UsageError("users-invalid", told, hint="simulate a part of the fleet, for its part of them"))
    return [*problems, *_check_paths(asked)]


def _check_paths(asked: Mapping[str, Any]) -> list[RuvError]:
    problems: list[RuvError] = []
    for key in ("model", "inputs", "output"):
        if key in asked and not is_text(path := str(Path(str(asked[key])).absolute())):
            told = f"{'MODEL' if key == 'model' else '-o' if key == 'output' else _flag(key)} is {path!r}"
            hint = "name every folder of it in UTF-8, as back ends want paths"
            problems.append(UsageError("path-not-text", f"{told}, which is no text", hint=hint))
    for file in [*listed(asked.get("costs", ())), *([asked["inputs"]] if "inputs" in asked else [])]:
        if not Path(file).is_file():
            problems.append(InputError("file-missing", f"no file {file}", hint="check the path"))
    return problems


def _fleet(asked: Mapping[str, Any], problems: list[RuvError]) -> tuple[Fleet | None, list[tuple[str, str]]]:
    try:
        if "fleet" in asked:
            for key in ("target", "nodes"):
                if key in asked:
                    raise UsageError(
                        "fleet-and-target", f"--fleet and --{key} contradict each other", hint=f"leave --{key} out"
                    )
            return load_fleet(Path(asked["fleet"])), []
        if "target" not in asked:
            raise UsageError(
                "target-missing",
                "neither a target nor a fleet was named",
                hint="add --target host (this machine), or --fleet fleet.toml",
            )
        applied = [] if "nodes" in asked else [("nodes", DEFAULTS["nodes"])]
        return make_fleet(str(asked["target"]), str(asked.get("nodes", DEFAULTS["nodes"]))), applied
    except RuvError as problem:
        problems.append(problem)
        return None, []


def _is_there(path: str) -> bool:
    try:
        return Path(path).exists()
    except OSError:  # a name too long for any file
        return False


def _model_hint(name: str) -> str:
    if "://" in name or (re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not name.endswith((".onnx", ".gguf"))):
        return "check the path; models are not fetched from a hub in this version"
    return "check the path"


def _flag(key: str) -> str:
    return "--" + dashed(key)


__all__ = ["KEYS_DIR", "Fleet", "FleetNode", "Link", "Options", "resolve"]
