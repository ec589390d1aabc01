"""Gemma 2: norms before and behind each part, every second layer windowed, scores and logits capped.

Its norms are stored as what they differ from one by; its embedding is multiplied by the root of its width as it is
read, not where it is the head.
"""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import Config, config_of
from ruvcompile.load.families.plain import SANDWICH, biases, named_weights, plain_form, stored_as, windowed, windows
from ruvcompile.load.form import Floats, Form, Weight
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("gemma2",)
DEFAULTS = {
    "hidden_activation": "gelu_pytorch_tanh",
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rms_norm_eps": 1e-6,
}


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    config = config_of(checkpoint, **DEFAULTS, **caps)
    form = gemma_form(checkpoint, config)
    return replace(
        form, layers=windows(form, config, windowed(config, len(form.layers), lambda number: number % 2 == 0))
    )


def gemma_form(checkpoint: Checkpoint, config: Config) -> Form:
    """What all of the later Gemmas have."""
    if config.keys.get("use_bidirectional_attention"):
        raise config.unsupported("sees what comes after a token, as an encoder does")
    # Some configurations name the exact GELU in `hidden_act`; what the model computes with is `hidden_activation`.
    keys = {**config.keys, "hidden_act": config.text("hidden_activation", "gelu_pytorch_tanh")}
    form = plain_form(checkpoint, replace(config, keys=keys), tied=True)
    return replace(
        form,
        biased=biases(config, mlp=()),
        post_norms=True,
        scale=config.number("query_pre_attn_scalar") ** -0.5,
        attention_cap=config.optional_number("attn_logit_softcapping"),
        logit_cap=config.optional_number("final_logit_softcapping"),
        embedding_scale=form.hidden**0.5,
    )


def weights(checkpoint: Checkpoint, form: Form) -> dict[str, Weight]:
    """Every canonical weight of the form."""
    tensors = {
        name: stored_as(stored, _plus_one) if name.endswith("norm.weight") else stored
        for name, stored in checkpoint.tensors.items()
    }
    return named_weights(replace(checkpoint, tensors=tensors), form, SANDWICH)


def _plus_one(array: Floats) -> Floats:
    result: Floats = array + array.dtype.type(1)
    return result
