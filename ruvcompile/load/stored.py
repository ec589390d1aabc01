"""A decoder checkpoint as its family sees it, whatever file it came from.

Two kinds of file hold decoders: Hugging Face directories (``config.json`` and safetensors) and GGUF. A family is
described once, in the words of the former; GGUF is a dialect that its reader translates. So a ``Checkpoint`` has a
``config`` with the keys of ``config.json`` and tensors under the names and in the layout of safetensors, and nothing
past this point knows which file it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not yet read.

    Args:
        source: its name in the file, for messages.
        shape: as safetensors have it; a linear weight is ``[out, in]``.
        bits: per weight in the file.
        read: decodes it anew, float32 of that shape; nothing keeps the result.
        rows: ``read()[start:stop]`` of a matrix without reading the rest, so that what is larger than memory can be
            walked over (``ruvcompile.rows``); None where that is not to be had.
    """

    source: str
    shape: tuple[int, ...]
    bits: int
    read: Callable[[], Floats]
    rows: Callable[[int, int], Floats] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A decoder checkpoint.

    Args:
        named_as: what the user called it, for messages.
        model_type: the family, as ``config.json`` calls it (``llama``, ``gemma3_text``).
        config: the keys of ``config.json``; of a nested one, those of its text part.
        tensors: by their names in safetensors (``model.layers.0.self_attn.q_proj.weight``).
    """

    named_as: str
    model_type: str
    config: Mapping[str, Any]
    tensors: Mapping[str, Stored]
