"""Checkpoint directories as large as real ones, of random numbers: ``config.json``, tokenizer, sharded safetensors.

    checkpoint.py 1b DIRECTORY      the shapes of llama 3.2 1B with a head of its own, 3 GB
    checkpoint.py 8b DIRECTORY      the shapes of llama 3.1 8B in bf16, 16 GB, every number random
    checkpoint.py 70b DIRECTORY     the shapes of llama 3.1 70B, 141 GB as `ls` sees them, 4 GB as `du` does

The large one is sparse: of a matrix one row in 64 is written, and the embedding whole; the rest are holes, which read
as zeros. So every tensor differs from every other, nothing that is computed is zero throughout, and it is on a disk in
a minute.

Numbers are of either sign and between 2^-7 and 2^-5, roughly what weights are; norms are ones. The vocabulary is the
256 bytes, all pairs of printable characters, and names that no text holds.
"""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

VOCAB = 128_256
WRITTEN_ROWS = 64
"""Of a sparse matrix, one row in so many is written."""

SHARD_BYTES = 5 * 10**9
# Tensors begin at pages of the file system, or there would be no holes between them.
PAGE = 4096
_PIECE = 16 << 20


@dataclass(frozen=True)
class Shapes:
    """The sizes of a llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn: int
    sparse: bool

    def tensors(self) -> dict[str, tuple[int, ...]]:
        """Every tensor's shape by its name, in the order in which they are written."""
        keys = self.kv_heads * self.hidden // self.heads
        layer = {
            "input_layernorm": (self.hidden,),
            "self_attn.q_proj": (self.hidden, self.hidden),
            "self_attn.k_proj": (keys, self.hidden),
            "self_attn.v_proj": (keys, self.hidden),
            "self_attn.o_proj": (self.hidden, self.hidden),
            "post_attention_layernorm": (self.hidden,),
            "mlp.gate_proj": (self.ffn, self.hidden),
            "mlp.up_proj": (self.ffn, self.hidden),
            "mlp.down_proj": (self.hidden, self.ffn),
        }
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, self.hidden)}
        for number in range(self.layers):
            found |= {f"model.layers.{number}.{name}.weight": shape for name, shape in layer.items()}
        return found | {"model.norm.weight": (self.hidden,), "lm_head.weight": (VOCAB, self.hidden)}


SHAPES = {
    "1b": Shapes(layers=16, hidden=2048, heads=32, kv_heads=8, ffn=8192, sparse=False),
    "8b": Shapes(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, sparse=False),
    "70b": Shapes(layers=80, hidden=8192, heads=64, kv_heads=8, ffn=28672, sparse=True),
}


def write_checkpoint(shapes: Shapes, directory: Path) -> None:
    """Write all of it; what is there already is written anew."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config_of(shapes), indent=2))
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer()))
    said = {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(said))
    tensors = shapes.tensors()
    parts = list(_shards(tensors))
    index: dict[str, str] = {}
    random = np.random.default_rng(0)
    for number, names in enumerate(parts, 1):
        shard = f"model-{number:05}-of-{len(parts):05}.safetensors"
        index |= dict.fromkeys(names, shard)
        _write_shard(directory / shard, {name: tensors[name] for name in names}, random, sparse=shapes.sparse)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def config_of(shapes: Shapes) -> dict[str, object]:
    """``config.json`` of such a llama, as the hub's."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": shapes.hidden,
        "intermediate_size": shapes.ffn,
        "num_hidden_layers": shapes.layers,
        "num_attention_heads": shapes.heads,
        "num_key_value_heads": shapes.kv_heads,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "vocab_size": VOCAB,
        "bos_token_id": VOCAB - 2,
        "eos_token_id": VOCAB - 1,
        "torch_dtype": "bfloat16",
    }


def tokenizer() -> dict[str, object]:
    """``tokenizer.json`` of a byte-level tokenizer with as many tokens as the model has rows."""
    # The bytes as GPT-2 spells them: those that print as they are, the others from 256 on.
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    spelt = [chr(each) for each in plain] + [chr(256 + each) for each in range(256 - len(plain))]
    printable = [chr(each) for each in range(33, 127)]
    pairs = list(product(printable, printable))
    words = [*spelt, *(one + other for one, other in pairs)]
    words += [f"<|unused_{number}|>" for number in range(VOCAB - 2 - len(words))]
    words += ["<|begin_of_text|>", "<|end_of_text|>"]
    kept = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": number, "content": words[number], **kept} for number in (VOCAB - 2, VOCAB - 1)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "truncation": None,
        "padding": None,
        "model": {
            "type": "BPE",
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [f"{one} {other}" for one, other in pairs],
        },
    }


def _shards(tensors: dict[str, tuple[int, ...]]) -> Iterator[list[str]]:
    names: list[str] = []
    size = 0
    for name, shape in tensors.items():
        if names and size + _bytes(shape) > SHARD_BYTES:
            yield names
            names, size = [], 0
        names.append(name)
        size += _bytes(shape)
    yield names


def _write_shard(path: Path, tensors: dict[str, tuple[int, ...]], random: np.random.Generator, *, sparse: bool) -> None:
    entries, offsets, end = {}, {}, 0
    for name, shape in tensors.items():
        offsets[name] = end
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [end, end + _bytes(shape)]}
        end += _bytes(shape)
    header = json.dumps(entries).encode()
    header += b" " * (-(len(header) + 8) % PAGE)
    path.unlink(missing_ok=True)
    with path.open("wb") as stream:
        stream.write(struct.pack("<Q", len(header)) + header)
        begin = stream.tell()
        stream.truncate(begin + end)
        for name, shape in tensors.items():
            stream.seek(begin + offsets[name])
            if len(shape) == 1:
                stream.write(np.full(shape, 0x3F80, "<u2").tobytes())  # ones
            elif sparse and name != "model.embed_tokens.weight":
                _write_some(stream, shape, random)
            else:
                for done in range(0, _bytes(shape), _PIECE):
                    stream.write(_numbers(min(_PIECE, _bytes(shape) - done) // 2, random).data)


def _write_some(stream: BinaryIO, shape: tuple[int, ...], random: np.random.Generator) -> None:
    """One row in ``WRITTEN_ROWS``; holes between them."""
    begin = stream.tell()
    for row in range(0, shape[0], WRITTEN_ROWS):
        stream.seek(begin + row * shape[1] * 2)
        stream.write(_numbers(shape[1], random).data)


def _numbers(count: int, random: np.random.Generator) -> npt.NDArray[np.uint16]:
    """Random bf16: sign, the lowest bit of the exponent, and seven bits of the number."""
    found: npt.NDArray[np.uint16] = random.integers(0, 1 << 16, count, np.uint16)
    found &= 0x80FF
    found |= 0x3C00
    return found


def _bytes(shape: tuple[int, ...]) -> int:
    return 2 * int(np.prod(shape))


if __name__ == "__main__":
    write_checkpoint(SHAPES[sys.argv[1]], Path(sys.argv[2]))
