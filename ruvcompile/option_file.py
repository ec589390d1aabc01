"""``ruvcompile.toml``: the options of a build as a person wrote them down, once for many.

It may hold every option by its name, and nothing else. What is checked here is what a file alone can get wrong: unknown
names, and values of a kind that no flag could have. Numbers, choices and paths are checked with those of flags.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruvcompile.configuration import read_configuration, unknown_keys
from ruvcompile.errors import InputError, RuvError, raise_all
from ruvcompile.spelled import dashed, listed

FILE = "ruvcompile.toml"
LATER = ("sign", "allow_download")
NAMES = (
    *("model", "target", "nodes", "fleet", "stages", "replicas", "cut", "quant", "kv_type", "context", "streams"),
    *("prompt_tokens", "objective", "inputs", "shape", "costs", "name", "new_keys", "output", "targets_dir"),
    *("activations", "precision", "link_type", "backend", "wheels", "simulate", "users", "max_tokens", *LATER),
)

# Kinds of the values in the file, those of numbers aside, which are checked wherever they come from.
_TEXT, _TEXTS = (str,), (str, list)
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("model", "target", "fleet", "quant", "kv_type", "objective", "inputs", "name"), _TEXT),
    **dict.fromkeys(("output", "targets_dir", "activations", "precision", "link_type", "backend"), _TEXT),
    **dict.fromkeys(("cut", "costs", "wheels"), _TEXTS),
    "nodes": (int, *_TEXTS),
    "shape": (dict, *_TEXTS),
    **dict.fromkeys(("new_keys", "simulate"), (bool,)),
}
_SHOWN = {str: "text in quotes", list: "a list of them", int: "a whole number", dict: "a table", bool: "true or false"}


def read_options(path: Path) -> dict[str, Any]:
    """What the file at ``path`` says, by option (underscores); paths in it are meant from where it lies.

    Raises:
        InputError: no TOML, an unknown key, a value of another kind; all of them at once.
    """
    raw = {key.replace("-", "_"): value for key, value in read_configuration(path, "configuration").items()}
    raise_all([*unknown_keys(raw, NAMES, str(path)), *_wrong_kinds(raw, path)])
    if isinstance(raw.get("nodes"), list):
        raw["nodes"] = ",".join(map(str, raw["nodes"]))
    for key in ("model", "fleet", "inputs", "output", "targets_dir"):
        if key in raw:
            raw[key] = str(path.parent / str(raw[key]))
    if "costs" in raw:
        raw["costs"] = [str(path.parent / entry) for entry in listed(raw["costs"])]
    return raw


def _wrong_kinds(raw: Mapping[str, Any], path: Path) -> list[RuvError]:
    problems: list[RuvError] = []
    for key, kinds in _KINDS.items():
        if key not in raw:
            continue
        value = raw[key]
        right = type(value) in kinds and value not in ("", [])  # else the default would be taken
        if not right or (isinstance(value, list) and not all(isinstance(entry, str) for entry in value)):
            hint = f"it is {' or '.join(_SHOWN[kind] for kind in kinds)}"
            problems.append(
                InputError("configuration-wrong", f"{path}: {dashed(key)} = {value!r} is not right", hint=hint)
            )
    return problems
