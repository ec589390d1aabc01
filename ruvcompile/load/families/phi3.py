"""Phi 3 and 4: a llama whose projections of one input are stored as one tensor, rotated in part of each head.

``qkv_proj`` holds the rows of query, key and value one below the other, ``gate_up_proj`` those of gate and up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

from ruvcompile.errors import InputError
from ruvcompile.load.families.config import config_of
from ruvcompile.load.families.plain import missing, named_weights, plain_form, windows
from ruvcompile.load.form import Form, Weight
from ruvcompile.load.stored import Checkpoint, Stored
from ruvcompile.matrices import Floats

MODEL_TYPES = ("phi3",)


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, original_max_position_embeddings=4096)
    for key in ("rope_scaling", "rope_parameters"):
        said = config.part(key).keys
        if said.get("rope_type", said.get("type")) in ("su", "yarn"):  # what longrope was called at first
            config = replace(config, keys={**config.keys, key: {**said, "rope_type": "longrope"}})
    form = plain_form(checkpoint, config, partial=True)
    # Where there is a window every layer has it, whatever layer_types may say: as transformers.
    return replace(form, layers=windows(form, config, (True,) * len(form.layers)))


def weights(checkpoint: Checkpoint, form: Form) -> dict[str, Weight]:
    """Every canonical weight of the form."""
    queries, keys = form.heads * form.head_size, form.kv_heads * form.head_size
    tensors = dict(checkpoint.tensors)
    for number in range(len(form.layers)):
        at = f"model.layers.{number}."
        parts = {"q_proj": queries, "k_proj": keys, "v_proj": keys}
        _divide(checkpoint.named_as, tensors, f"{at}self_attn.qkv_proj.weight", f"{at}self_attn.", parts)
        parts = {"gate_proj": form.ffn, "up_proj": form.ffn}
        _divide(checkpoint.named_as, tensors, f"{at}mlp.gate_up_proj.weight", f"{at}mlp.", parts)
    return named_weights(replace(checkpoint, tensors=tensors), form)


def _divide(named_as: str, tensors: dict[str, Stored], name: str, at: str, rows: Mapping[str, int]) -> None:
    """Put the parts of a fused tensor in its place."""
    fused = tensors.get(name)
    if fused is None:
        raise missing(named_as, name)
    if len(fused.shape) != 2 or fused.shape[0] != sum(rows.values()):
        raise InputError(
            "tensor-shape-wrong",
            f"tensor {fused.source} has the wrong shape",
            context=[f"it is {fused.shape}; the configuration asks for {' + '.join(map(str, rows.values()))} rows"],
            hint="the file is damaged or was converted wrongly; convert it again",
        )
    first = 0
    for part, count in rows.items():
        read = partial(_read, fused, first, first + count)
        few = partial(_some, fused.rows, first) if fused.rows is not None else None
        tensors[f"{at}{part}.weight"] = replace(fused, shape=(count, fused.shape[1]), read=read, rows=few)
        first += count
    del tensors[name]


def _read(fused: Stored, first: int, last: int) -> Floats:
    return fused.read()[first:last] if fused.rows is None else fused.rows(first, last)


def _some(rows: Callable[[int, int], Floats], first: int, start: int, stop: int) -> Floats:
    return rows(first + start, first + stop)
