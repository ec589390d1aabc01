"""Gemma, the first: a llama with a GELU for a gate, and what all Gemmas have.

Their norms are stored as what they differ from one by; their embedding is multiplied by the root of its width as it is
read, not where it is the head.
"""

from __future__ import annotations

from dataclasses import replace

from ruvcompile.load.families.config import Config, config_of
from ruvcompile.load.families.plain import biases, named_weights, plain_form, stored_as
from ruvcompile.load.form import Form, Weight
from ruvcompile.load.stored import Checkpoint
from ruvcompile.matrices import Floats

MODEL_TYPES = ("gemma",)
TANH = "gelu_pytorch_tanh"


def describe(checkpoint: Checkpoint) -> Form:
    """The form of the decoder in ``checkpoint``."""
    config = config_of(checkpoint, head_dim=256, num_key_value_heads=16, rms_norm_eps=1e-6)
    act = config.text("hidden_act", TANH)
    # The first configurations say `gelu` and mean its approximation.
    return gemma_form(checkpoint, config, TANH if act == "gelu" else act)


def gemma_form(checkpoint: Checkpoint, config: Config, act: str) -> Form:
    """What all Gemmas have; ``act`` is what the model computes with, whichever key it is under."""
    form = plain_form(checkpoint, replace(config, keys={**config.keys, "hidden_act": act}), tied=True)
    return replace(form, biased=biases(config, mlp=()), embedding_scale=form.hidden**0.5)


def weights(checkpoint: Checkpoint, form: Form) -> dict[str, Weight]:
    """Every canonical weight of the form."""
    return named_weights(whole_norms(checkpoint), form)


def whole_norms(checkpoint: Checkpoint) -> Checkpoint:
    """The checkpoint with norms as every other family stores them."""
    tensors = {
        name: stored_as(stored, _plus_one) if name.endswith("norm.weight") else stored
        for name, stored in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)


def _plus_one(array: Floats) -> Floats:
    result: Floats = array + array.dtype.type(1)
    return result
