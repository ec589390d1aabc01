"""Gemma 3, the text part: as Gemma 2, with queries and keys normed instead of capped.

Five of six layers are windowed, and those rotate by a table of their own with a smaller base; what stretches the
rotary embedding to more positions concerns only the others. The larger sizes are stored with an image encoder in
front; their text part is this decoder.
"""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families import gemma2
from ruvcompile.load.families.config import Config, config_of
from ruvcompile.load.families.plain import windowed, windows
from ruvcompile.load.families.rotary import rotary_of, table
from ruvcompile.load.form import ROTARY, Form
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("gemma3_text",)
LOCAL = "rotary_local"
GLOBAL_BASE, LOCAL_BASE = 1_000_000.0, 10_000.0
# The configurations of the larger sizes say little more than what differs from these.
DEFAULTS = {
    **gemma2.DEFAULTS,
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "max_position_embeddings": 131_072,
}

weights = gemma2.weights


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, **DEFAULTS)
    stretched, local = _rotaries(config)
    form = gemma2.sandwich_form(checkpoint, stretched)
    every = config.count("sliding_window_pattern", config.count("_sliding_window_pattern", 6))
    chosen = windowed(config, len(form.layers), lambda number: (number + 1) % every != 0)
    layers = tuple(
        replace(layer, rotary=LOCAL if yes else ROTARY)
        for layer, yes in zip(windows(form, config, chosen), chosen, strict=True)
    )
    rotaries = {
        ROTARY: rotary_of(stretched, form.head_size, GLOBAL_BASE),
        LOCAL: table(local, form.head_size, LOCAL_BASE),
    }
    # The family has a key for a cap on scores, from the one before it, and computes none.
    return replace(form, qk_norm=True, attention_cap=0.0, layers=layers, rotaries=rotaries)


def _rotaries(config: Config) -> tuple[Config, Config]:
    """The configuration with what the rotary table of the full layers needs, and that of the windowed ones alone."""
    nested = config.part("rope_parameters")
    full, sliding = nested.part("full_attention").keys, nested.part("sliding_attention").keys
    base = {"rope_theta": config.number("rope_local_base_freq", LOCAL_BASE)}
    local = Config(config.named_as, {**base, **sliding})
    if not full:
        return config, local
    return replace(config, keys={**config.keys, "rope_parameters": full}), local
