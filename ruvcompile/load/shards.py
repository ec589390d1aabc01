"""The safetensors files of a checkpoint directory, as one set of tensors.

One file (``model.safetensors``), or several with an index (``model.safetensors.index.json``) that says which tensor is
in which. The index is held against the files: a shard that is not there, a tensor that is not where the index says, a
tensor that it does not name or that is in two shards are errors, since each means that something else than this
model would be built. A shard may be a link (the cache of the hub keeps files elsewhere and links to them), but its name
must be one of a file in this directory.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from ruvcompile.errors import InputError
from ruvcompile.load.json_file import read_json_object
from ruvcompile.load.safetensors import Shard, open_shard

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
MOST_SHARDS = 4096

_PART = re.compile(r".*-\d+-of-\d+\.safetensors")


def open_shards(directory: Path, named_as: str) -> tuple[Shard, ...]:
    """Open the headers of all shards in ``directory``, in order of their names.

    Args:
        directory: of the checkpoint.
        named_as: what the user called it.

    Raises:
        InputError: there are no safetensors, a shard is missing or damaged, or shards and index disagree.
    """
    if (directory / SINGLE).exists():
        return (open_shard(directory / SINGLE, f"{named_as}/{SINGLE}"),)
    if not (directory / INDEX).exists():
        raise _none(directory, named_as)
    index = f"{named_as}/{INDEX}"
    wanted = _weight_map(directory / INDEX, index)
    names = sorted(set(wanted.values()))
    if len(names) > MOST_SHARDS:
        raise _disagrees(index, f"it names {len(names)} shards")
    missing = [name for name in names if not (directory / name).exists()]
    if missing:
        raise InputError(
            "shard-missing",
            f"{named_as} lacks {len(missing)} of its {len(names)} shards",
            context=[f"missing: {', '.join(missing[:6])}{', ...' if len(missing) > 6 else ''}", f"named by {index}"],
            hint="copy or download the whole checkpoint; a link may point to a file that is gone",
        )
    shards = tuple(open_shard(directory / name, f"{named_as}/{name}") for name in names)
    _check(shards, names, wanted, index)
    return shards


def _weight_map(path: Path, index: str) -> dict[str, str]:
    found = read_json_object(path, index).get("weight_map")
    if not isinstance(found, dict) or not found or not all(isinstance(shard, str) for shard in found.values()):
        raise _disagrees(index, "it has no weight_map from tensors to files")
    for tensor, shard in found.items():
        if Path(shard).name != shard or shard in ("", ".", "..") or "\0" in shard:
            raise _disagrees(index, f"it says that {tensor} is in {shard!r}, which is no file of this directory")
    return found


def _check(shards: Sequence[Shard], names: Sequence[str], wanted: dict[str, str], index: str) -> None:
    """The tensors of the shards are those of the index, each where it says."""
    where: dict[str, str] = {}
    for name, shard in zip(names, shards, strict=True):
        for tensor in shard.entries:
            if tensor in where:
                raise _disagrees(index, f"tensor {tensor} is both in {where[tensor]} and in {name}")
            where[tensor] = name
    for tensor, name in wanted.items():
        found = where.get(tensor)
        if found != name:
            raise _disagrees(index, f"tensor {tensor} should be in {name}, and is in {found or 'none of the shards'}")
    extra = sorted(where.keys() - wanted.keys())
    if extra:
        raise _disagrees(index, f"{where[extra[0]]} holds {extra[0]}, which the index does not name")


def _disagrees(index: str, what: str) -> InputError:
    return InputError(
        "shard-index-wrong",
        f"{index} and the shards beside it disagree",
        context=[what],
        hint="files of two checkpoints may be mixed; copy or download the whole checkpoint again",
    )


def _none(directory: Path, named_as: str) -> InputError:
    kinds = (".bin", ".pt", ".pth", ".safetensors")
    found = sorted(path.name for path in directory.iterdir() if path.suffix.lower() in kinds)
    return InputError(
        "shard-missing",
        f"{named_as} holds neither {SINGLE} nor {INDEX}",
        context=[f"it holds {', '.join(found[:6])}"] if found else [],
        hint=_way_out(found),
    )


def _way_out(found: Sequence[str]) -> str:
    """What to do about a directory that has only these files of weights."""
    if SINGLE in found:
        return f"{SINGLE} is a link to a file that is not there; copy the whole checkpoint"
    if any(name.startswith("adapter_model.") for name in found):
        return "it is an adapter: merge it into its model and save that: merge_and_unload() of the library peft"
    if any(_PART.fullmatch(name) for name in found):
        return "copy the index too"
    if any(name.startswith("consolidated") for name in found):
        return "consolidated files are of another form; get the model-*.safetensors of the same checkpoint"
    if any(name.lower().endswith(".safetensors") for name in found):
        return f"if that is the whole model, its file must be called {SINGLE}"
    return "save it as safetensors" if found else "copy the whole checkpoint"
