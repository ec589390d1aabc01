"""A family of decoders as a test asks it: by a configuration of which some keys are changed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ruvcompile.load.families import family_of
from ruvcompile.load.form import Form
from tests.checkpoints import CONFIGS
from tests.decoders import family_checkpoint

WINDOWS = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
CHECKPOINTS = {name: family_checkpoint(name) for name in CONFIGS}


def describe(name: str, tensors: Mapping[str, Any] | None = None, **keys: object) -> Form:
    """The form of a configuration with some keys changed; None takes a key away."""
    checkpoint = family_checkpoint(name)
    config = {key: value for key, value in {**checkpoint.config, **keys}.items() if value is not ...}
    checkpoint = replace(checkpoint, config=config, tensors=tensors or checkpoint.tensors)
    return family_of(checkpoint).describe(checkpoint)
