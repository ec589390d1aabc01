"""A checkpoint directory in, a ``Program`` out: what Hugging Face's libraries write and its hub hands out.

``config.json`` says what the model is, safetensors hold the weights (``shards``), and a few files tell text from
tokens (``directory_tokenizer``). Nothing is imported from those libraries, and nothing of a weight is read here.

A model of several kinds of input has its decoder's configuration under ``text_config`` and its tensors under a prefix:
that part is taken, by the names it would have alone, and what belongs to the others is left out.

``Source.sha256`` names what the program came from. Reading 141 GB to hash them would take longer than to build from
them, so it is made over the small files that are used, every shard's size and header, and the first 4 KiB of every
tensor: another checkpoint, also a fine-tuned one of the same shapes, has another name. It does not prove that no bit
further inside has changed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ruvcompile.errors import InputError
from ruvcompile.load.decoder import decoder_program
from ruvcompile.load.directory_tokenizer import FILES, read_tokenizer
from ruvcompile.load.json_file import read_bytes, read_json_object
from ruvcompile.load.safetensors import FLOATS, Shard, stored
from ruvcompile.load.shards import INDEX, open_shards
from ruvcompile.load.stored import Checkpoint, Stored
from ruvcompile.program import Program, Source

CONFIG = "config.json"
ADAPTER = "adapter_config.json"

_SAMPLE = 4096
# Keys that a nested configuration may leave to the whole.
_SHARED = ("tie_word_embeddings", "eos_token_id", "bos_token_id", "quantization_config")
_RENAMED = {
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "model.language_model.": "model.",
}
_OTHER_INPUTS = ("vision_tower.", "vision_model.", "visual.", "multi_modal_projector.", "audio_tower.")
# Made from the configuration by whoever wrote the file, and none of the model's weights.
_BUFFERS = ("position_ids", "masked_bias")


def load_directory(path: Path, named_as: str) -> Program:
    """Load the decoder in the directory at ``path``; its weights are read only when they are needed.

    Args:
        path: of the directory; links in it are followed.
        named_as: how the user called it; it stands in messages and in ``Source.path``.

    Raises:
        InputError: everything that can be wrong with its files, or a model that is not supported.
    """
    whole = read_json_object(path / CONFIG, f"{named_as}/{CONFIG}")
    config = _text_part(whole, named_as)
    shards = open_shards(path, named_as)
    nested = config is not whole
    checkpoint = Checkpoint(named_as, _model_type(config, named_as), config, _tensors(shards, config, nested=nested))
    source = Source(named_as, fingerprint(path, shards))
    program = decoder_program(
        checkpoint, directory_name(path), source, lambda vocab: read_tokenizer(path, named_as, config, vocab)
    )
    if (path / ADAPTER).exists():
        program = replace(program, notes=(*program.notes, f"the adapter beside the model ({ADAPTER}) is not applied"))
    return program


def directory_name(path: Path) -> str:
    """The model's name out of its directory's; in a cache of the hub, out of the repository's."""
    absolute = path.absolute()
    if absolute.parent.name == "snapshots" and absolute.parents[1].name.startswith("models--"):
        return absolute.parents[1].name.rpartition("--")[2]
    return absolute.name or absolute.resolve().name or "model"


def _text_part(whole: dict[str, Any], named_as: str) -> dict[str, Any]:
    text = whole.get("text_config")
    if text is None:
        return whole
    if not isinstance(text, dict):
        raise _wrong(named_as, "text_config is no object")
    return {**{key: whole[key] for key in _SHARED if key in whole}, **text}


def _model_type(config: Mapping[str, Any], named_as: str) -> str:
    kind = config.get("model_type")
    if not isinstance(kind, str) or not kind:
        raise _wrong(named_as, "model_type is missing" if kind is None else f"model_type is {kind!r}, not a name")
    return kind


def _tensors(shards: Sequence[Shard], config: Mapping[str, Any], *, nested: bool) -> dict[str, Stored]:
    """The decoder's tensors by the names they have in a checkpoint of nothing else."""
    names = {name for shard in shards for name in shard.entries}
    bare = "embed_tokens.weight" in names  # saved without its head: the names begin inside
    found: dict[str, Stored] = {}
    for shard in shards:
        for name, entry in shard.entries.items():
            ours = next((new + name[len(old) :] for old, new in _RENAMED.items() if name.startswith(old)), name)
            if bare and not ours.startswith(("model.", "lm_head.")):
                ours = f"model.{ours}"
            if nested and ours.removeprefix("model.").startswith(_OTHER_INPUTS):
                continue
            if entry.kind not in FLOATS and (ours.endswith(_BUFFERS) or config.get("quantization_config")):
                continue  # the family refuses what is quantised, and says so better
            if ours in found:
                raise InputError(
                    "model-unsupported",
                    f"{shard.named_as} holds {ours} under two names",
                    context=[f"one is {name}"],
                    hint="save the decoder by itself",
                )
            found[ours] = stored(shard, entry)
    return found


def fingerprint(path: Path, shards: Iterable[Shard]) -> str:
    """``Source.sha256`` of a checkpoint directory (see the module's text)."""
    digest = hashlib.sha256()
    for name in (CONFIG, INDEX, *FILES):
        file = path / name
        if file.exists():
            content = hashlib.sha256(read_bytes(file, str(file))).hexdigest()
            digest.update(f"{name} {content}\n".encode())
    for shard in shards:
        digest.update(f"{shard.path.name} {shard.size} {hashlib.sha256(shard.header).hexdigest()}\n".encode())
        with shard.path.open("rb") as stream:
            for name in sorted(shard.entries):
                entry = shard.entries[name]
                stream.seek(entry.offset)
                digest.update(stream.read(min(_SAMPLE, entry.nbytes)))
    return digest.hexdigest()


def _wrong(named_as: str, what: str) -> InputError:
    return InputError(
        "config-wrong",
        f"{named_as}/{CONFIG} does not describe a model: {what}",
        hint="copy or download the checkpoint again",
    )
