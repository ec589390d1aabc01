"""The nouns of the compiler: what passes from one step of ``compile.py`` to the next.

A ``Program`` is the imported graph in canonical form plus what it is. All its float weights are lazy: they
are read, and later quantised, tensor by tensor while a file is written, so that memory does not grow with
the model.

Canonical form of a decoder (see ``load/checkpoint.py``): inputs ``input_ids`` and ``position_ids``
``[batch, sequence]`` int64, and per layer ``past_key.i`` / ``past_value.i`` ``[batch, heads, past, head_size]``;
outputs ``logits`` ``[batch, sequence, vocab]``, ``present_key.i`` / ``present_value.i``. Every node has a unique
name, ``/layers.3/attn/q_proj``, and every node of layer *i* is named ``/layers.i/...``. The metadata of a weight
say how many bits the file holds it in (``BITS``) and which weight it is tied to, if any (``TIED``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import onnx_ir as ir

BITS = "ruv.bits"
TIED = "ruv.tied"


@dataclass(frozen=True)
class Decoder:
    """What a decoder is, beyond its graph. Sizes as in the checkpoint's metadata.

    ``context`` is the largest number of positions the model was trained for; ``eos`` are the tokens that
    end an answer. ``exported``: the graph is run as it was exported, with its state in plain tensors; it has the
    canonical form's names of inputs, outputs and parts, and nothing else of it.
    """

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    vocab: int
    context: int
    eos: tuple[int, ...]
    exported: bool = False


@dataclass(frozen=True)
class Source:
    """What a program came from: ``path`` as it was named to the build, and the SHA-256 of the file there.

    Of a checkpoint directory it is that of all that tells it from others (see ``load/directory.py``).
    """

    path: str
    sha256: str


@dataclass(frozen=True)
class Piece:
    """Which part of the program a stage is: its nodes, and the tensors that enter and leave it.

    ``inputs`` and ``outputs`` name activations only; a decoder's key/value state is added by the lowering.
    ``forward`` names what is sent on, which may hold inputs that a later stage needs.
    """

    nodes: tuple[str, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    forward: tuple[str, ...]
    first: bool
    last: bool


@dataclass(frozen=True)
class Program:
    """The imported graph in canonical form, and what it is.

    ``head_files`` is what the head process needs to turn text into tokens and back, by file name:
    ``tokenizer.json`` (the tokenizers library's format) and ``chat.json`` (see ``ruvrun.tokenizer.Chat``).
    ``decoder`` is None for any other graph. ``precision``, ``f32`` or ``bf16``, is of the numbers that are computed
    with, ``kv_type`` of keys and values, empty where it was not asked for. ``notes`` are sentences that the user is
    told when it is built.
    """

    name: str
    model: ir.Model
    source: Source
    decoder: Decoder | None
    head_files: Mapping[str, bytes] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    precision: str = "f32"
    kv_type: str = ""
