"""What lies beside an exported decoder: its configuration and its tokenizer.

A graph does not say how long a text the model was made for, nor which tokens end an answer. Exporters leave that in
files beside it: ``config.json`` (transformers, optimum) or ``genai_config.json`` (onnxruntime-genai's builder), and the
tokenizer as any checkpoint has it. The folder above is looked at too, for some graphs lie in a folder ``onnx``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruvcompile.errors import InputError
from ruvcompile.load.json_file import read_json_object

CONFIG, GENAI = "config.json", "genai_config.json"

_CONTEXT = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_seq_len", "seq_length")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_HIDDEN = ("hidden_size", "n_embd", "d_model", "dim")


@dataclass(frozen=True)
class Facts:
    """What the files beside a graph say of it; 0 where they do not.

    Args:
        folder: where they lie.
        context: the longest text.
        heads: of queries.
        head_size: of one of them.
        vocab: tokens of the vocabulary.
        config: the configuration, as ``config.json`` has it; what ends an answer is among it.
    """

    folder: Path
    architecture: str
    context: int
    heads: int
    head_size: int
    vocab: int
    config: Mapping[str, Any]


def read_facts(graph: Path, named_as: str) -> Facts:
    """Read what lies beside the file ``graph``.

    Raises:
        InputError: there is no configuration, or one that cannot be read.
    """
    for folder in (graph.parent, graph.resolve().parent, graph.resolve().parent.parent):
        if (folder / GENAI).is_file():
            return _genai(folder)
        if (folder / CONFIG).is_file():
            return _transformers(folder)
    raise InputError(
        "decoder-config-missing",
        f"{named_as} is a decoder, and neither {CONFIG} nor {GENAI} lies beside it",
        context=["they tell how long a text it takes, and which tokens end an answer"],
        hint=f"copy {CONFIG} (or {GENAI}), tokenizer.json and tokenizer_config.json beside the graph",
    )


def _genai(folder: Path) -> Facts:
    model = _table(read_json_object(folder / GENAI, GENAI), "model")
    decoder = _table(model, "decoder")
    return Facts(
        folder,
        str(model.get("type", "")),
        _number(model, ("context_length",)),
        _number(decoder, ("num_attention_heads",)),
        _number(decoder, ("head_size",)),
        _number(model, ("vocab_size",)),
        model,
    )


def _transformers(folder: Path) -> Facts:
    outer = read_json_object(folder / CONFIG, CONFIG)
    config: Mapping[str, Any] = {**outer, **_table(outer, "text_config")}
    heads, hidden = _number(config, _HEADS), _number(config, _HIDDEN)
    return Facts(
        folder,
        str(config.get("model_type", "")),
        _number(config, _CONTEXT),
        heads,
        _number(config, ("head_dim",)) or (hidden // heads if heads else 0),
        _number(config, ("vocab_size",)),
        config,
    )


def _table(outer: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = outer.get(key)
    return found if isinstance(found, dict) else {}


def _number(table: Mapping[str, Any], keys: tuple[str, ...]) -> int:
    """The first of ``keys`` that holds a whole number above 0, else 0."""
    values = (table.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0), 0)
