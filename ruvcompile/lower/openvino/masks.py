"""Attention that is told by inputs what it sees, in a graph as OpenVINO's reader made it.

What the inputs are is the executor's to say (``ruvrun.executors.openvino.masks``).

The reader draws the mask of a causal layer, and that of a window, from the lengths of queries and keys. That is right
only while every key is of use and stands at the place of its position.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from openvino import opset13

from ruvrun.errors import IntegrityError
from ruvrun.executors.openvino.masks import MASK

ATTENTION = "ScaledDotProductAttention"
_MASK = 3
"""Which of its inputs is the mask."""


def masked(model: Any, windows: Sequence[int]) -> None:
    """Give every layer the mask of its window as an input ``[batch, 1, queries, keys]``, in place.

    Args:
        windows: of each layer, in order, how many positions a token sees, itself the last of them; 0 for all.

    Raises:
        IntegrityError: there are not so many layers of attention.
    """
    layers = [node for node in model.get_ordered_ops() if node.get_type_name() == ATTENTION]
    if len(layers) != len(windows):
        raise IntegrityError(
            "attention-unknown",
            f"OpenVINO takes {len(layers)} of {len(windows)} layers for attention",
            hint="build again with this version of OpenVINO",
        )
    masks = {}
    for window in sorted(set(windows)):
        mask = opset13.parameter([-1, 1, -1, -1], np.float32, name=f"{MASK}{window}")
        mask.output(0).set_names({f"{MASK}{window}"})
        masks[window] = mask
    for layer, window in zip(layers, windows, strict=True):
        layer.input(_MASK).replace_source_output(masks[window].output(0))
    model.add_parameters([*masks.values()])
