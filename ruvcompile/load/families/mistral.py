"""Mistral: a llama whose tokens see only the last so many positions."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import config_of
from ruvcompile.load.families.plain import named_weights, plain_form, windowed, windows
from ruvcompile.load.form import Form
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("mistral",)

weights = named_weights


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, sliding_window=4096, num_key_value_heads=8)
    form = plain_form(checkpoint, config)
    return replace(form, layers=windows(form, config, windowed(config, len(form.layers), lambda _: True)))
