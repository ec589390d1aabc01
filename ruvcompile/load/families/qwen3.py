"""Qwen 3: queries and keys are normed head by head, before they are rotated, and have no biases unless told so."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import config_of
from ruvcompile.load.families.plain import biases, named_weights, plain_form
from ruvcompile.load.families.qwen2 import DEFAULTS, late_windows
from ruvcompile.load.form import Form
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("qwen3",)

weights = named_weights


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, **DEFAULTS, head_dim=128)
    form = plain_form(checkpoint, config)
    return replace(form, qk_norm=True, biased=biases(config), layers=late_windows(form, config))
