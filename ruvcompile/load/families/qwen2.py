"""Qwen 2 and 2.5: a llama with biases on query, key and value, and windows from some layer on where it is told so."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import Config, config_of
from ruvcompile.load.families.plain import QKV, named_weights, plain_form, windowed, windows
from ruvcompile.load.form import Form, Layer
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("qwen2",)
DEFAULTS = {"sliding_window": 4096, "max_window_layers": 28, "num_key_value_heads": 32}

weights = named_weights


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, **DEFAULTS)
    form = plain_form(checkpoint, config)
    return replace(form, biased=QKV, layers=late_windows(form, config))


def late_windows(form: Form, config: Config) -> tuple[Layer, ...]:
    """The layers, with windows behind the first ``max_window_layers`` where windows are asked for at all."""
    if not config.flag("use_sliding_window", False):
        return form.layers
    first = config.whole("max_window_layers")
    return windows(form, config, windowed(config, len(form.layers), lambda number: number >= first))
