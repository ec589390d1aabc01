"""SmolLM 3: a llama in which every fourth layer rotates nothing."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import config_of
from ruvcompile.load.families.plain import biases, named_weights, plain_form, windowed, windows
from ruvcompile.load.form import ROTARY, Form
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("smollm3",)

weights = named_weights


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, num_key_value_heads=4)
    form = plain_form(checkpoint, config, tied=True, base=2_000_000.0)
    every = config.count("no_rope_layer_interval", 4)
    rotated = config.items("no_rope_layers", len(form.layers)) or [
        (number + 1) % every for number in range(len(form.layers))
    ]
    layers = form.layers
    if config.flag("use_sliding_window", False):
        layers = windows(form, config, windowed(config, len(layers), lambda number: not rotated[number]))
    layers = tuple(
        replace(layer, rotary=ROTARY if turns else None) for layer, turns in zip(layers, rotated, strict=True)
    )
    return replace(form, biased=biases(config), layers=layers)
