"""Llama, and what is built like it: the form that all others are told by their difference from."""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import config_of
from ruvcompile.load.families.plain import biases, named_weights, plain_form
from ruvcompile.load.form import Form
from ruvcompile.load.stored import Checkpoint

MODEL_TYPES = ("llama",)

weights = named_weights


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint)
    return replace(plain_form(checkpoint, config), biased=biases(config))
