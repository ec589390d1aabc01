"""A decoder checkpoint as its family sees it, whatever file it came from.

Two kinds of file hold decoders: Hugging Face directories (``config.json`` and safetensors) and GGUF. A family is
described once, in the words of the former; GGUF is a dialect that its reader translates. So a ``Checkpoint`` has a
``config`` with the keys of ``config.json`` and tensors under the names and in the layout of safetensors, and nothing
past this point knows which file it was.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import IO, Any

import numpy as np

from ruvcompile.errors import InputError
from ruvcompile.matrices import Floats

Stamp = tuple[int, int]


@dataclass(frozen=True)
class Stored:
    """A tensor in a file, not yet read.

    Args:
        source: its name in the file, for messages.
        shape: as safetensors have it; a linear weight is ``[out, in]``.
        bits: per weight in the file.
        read: decodes it anew, float32 of that shape; nothing keeps the result.
        rows: ``read()[start:stop]`` of a matrix without reading the rest, so that what is larger than memory can be
            walked over (``ruvcompile.matrices``); None where that is not to be had.
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


def check_numbers(some: Floats, tensor: str, path: Path) -> None:
    """Refuse weights that are no numbers: the model would answer nothing, and no later step would say so.

    Raises:
        InputError: there is an infinity or a NaN among ``some`` of the weights of ``tensor``.
    """
    if not np.isfinite(some).all():
        raise InputError(
            "tensor-not-finite",
            f"tensor {tensor} in {path} holds infinities or values that are no numbers (NaN)",
            hint="the training or conversion that wrote it went wrong; get or convert the checkpoint again",
        )


def stamp_of(stream: IO[bytes]) -> Stamp:
    """What tells that a file is still as it was: its size, and when it was last written to."""
    found = os.fstat(stream.fileno())
    return found.st_size, found.st_mtime_ns


@contextmanager
def data_of(path: Path, stamp: Stamp | None) -> Iterator[FileIO]:
    """The file at ``path`` to read weights from, long after its header was read.

    Args:
        path: the file.
        stamp: ``stamp_of`` it when its header was read; None where that is not known.

    Raises:
        InputError: it is not there any more, it cannot be read, or it is not what it was: header and weights would
            be those of two models, or of a download that goes on.
    """
    try:
        with path.open("rb", buffering=0) as stream:
            if stamp is not None and stamp_of(stream) != stamp:
                raise InputError(
                    "model-changed",
                    f"{path} was written to after its header was read",
                    hint="leave the model alone during a build; if it is still being downloaded, wait",
                )
            yield stream
    except OSError as error:
        raise InputError(
            "file-unreadable",
            f"cannot read {path} any more: {error.strerror}",
            hint="leave the model where it is during a build",
        ) from None
