"""Gemma 2: norms before and behind each part, every second layer windowed, scores and logits capped."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import Config, config_of
from ruvcompile.load.families.gemma import TANH, gemma_form, whole_norms
from ruvcompile.load.families.plain import SANDWICH, named_weights, windowed, windows
from ruvcompile.load.form import Form, Weight
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("gemma2",)
DEFAULTS = {
    "head_dim": 256,
    "num_key_value_heads": 4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "rms_norm_eps": 1e-6,
}


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, **DEFAULTS, attn_logit_softcapping=50.0, final_logit_softcapping=30.0)
    form = sandwich_form(checkpoint, config)
    chosen = windowed(config, len(form.layers), lambda number: number % 2 == 0)
    return replace(form, layers=windows(form, config, chosen))


def sandwich_form(checkpoint: Checkpoint, config: Config) -> Form:
    """What the later Gemmas have besides."""
    return replace(
        gemma_form(checkpoint, config, config.text("hidden_activation", TANH)),
        post_norms=True,
        scale=config.number("query_pre_attn_scalar") ** -0.5,
        attention_cap=config.optional_number("attn_logit_softcapping"),
        logit_cap=config.optional_number("final_logit_softcapping"),
    )


def weights(checkpoint: Checkpoint, form: Form) -> dict[str, Weight]:
    """Every canonical weight of the form."""
    return named_weights(whole_norms(checkpoint), form, SANDWICH)
