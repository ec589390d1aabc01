"""A GGUF file told in the words of Hugging Face: metadata become ``config.json``, tensors get their names there.

GGUF holds the same models as Hugging Face directories do, under other names, and with some things changed by the
converter that wrote it. All of it is undone here, so that a family is described once (``load/families``):

1. Keys: ``<architecture>.block_count`` is ``num_hidden_layers``, and so on. What a file leaves out because
   the program that reads GGUF knows it by architecture (every fourth layer of smollm3 without rotary embedding, the
   pattern of gemma's windows) is put in.
2. Names: ``blk.3.attn_q.weight`` is ``model.layers.3.self_attn.q_proj.weight`` (``gguf_names``).
3. Rows: architectures whose rotary embedding turns neighbouring pairs (llama, smollm3) have the rows of the query and
   key projections permuted, head by head. Whole rows move, so putting them back is exact whatever the quantisation.
4. Norms: gemma's are stored with the one added that its own checkpoints leave out.
5. Rotary factors: llama 3's stretching is stored as a tensor of divisors, one per pair of channels. Where they are
   those that the published rule gives, the rule is named again; else they are handed on as they are, as the short
   factors of ``longrope``, which is the same calculation.

Nothing is read but the small tensors of point 5.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from ruvcompile.errors import InputError
from ruvcompile.load.families import FAMILIES
from ruvcompile.load.gguf_data import read_rows, read_tensor
from ruvcompile.load.gguf_file import GgufFile, StoredTensor
from ruvcompile.load.gguf_names import safetensors_name
from ruvcompile.load.gguf_rope import FACTORS, LONG_FACTORS, SHORT_FACTORS, rope_keys
from ruvcompile.load.stored import Checkpoint, Stored
from ruvcompile.matrices import Floats

MODEL_TYPES = {
    **{name: name for name in ("llama", "qwen2", "qwen3", "phi3", "gemma2", "smollm3")},
    "gemma3": "gemma3_text",
}
"""The ``model_type`` of each ``general.architecture``; a llama with a window is a mistral."""

PERMUTED = ("llama", "smollm3")
OFF_BY_ONE = ("gemma2", "gemma3")
# Layers of the models of each kind whose attention is scaled by the width of a head as if there were no head_dim.
_SCALED_BY_WIDTH = {"gemma2": 46, "gemma3": 62}


def checkpoint_of(file: GgufFile) -> Checkpoint:
    """The checkpoint in ``file``.

    Raises:
        InputError: the file holds no model, one of an architecture that is not known, or metadata that make no sense.
    """
    kind = file.metadata.get("general.type", "model")
    if kind != "model":
        raise InputError(
            "model-unsupported",
            f"{file.named_as} holds not a model but: {kind}",
            hint="give the file of the model itself",
        )
    if not file.tensors:
        raise _wrong(file, "it has no tensors")
    architecture = file.architecture
    config = _config(file, architecture)
    if architecture not in MODEL_TYPES and not config["num_local_experts"]:
        raise InputError(
            "model-unsupported",
            f"{file.named_as} is of architecture {architecture!r}, which is not supported",
            context=[f"supported in GGUF: {', '.join(sorted(MODEL_TYPES))}"],
            hint=f"use a model of a supported architecture; as safetensors: {', '.join(sorted(FAMILIES))}",
        )
    model_type = MODEL_TYPES.get(architecture, architecture)
    if architecture == "llama" and config.get("sliding_window"):
        model_type = "mistral"
    # Of a mixture of experts only that is told, so that the families refuse it by name.
    tensors = {} if config["num_local_experts"] else _tensors(file, config)
    return Checkpoint(file.named_as, model_type, config, tensors)


def _config(file: GgufFile, architecture: str) -> dict[str, Any]:
    """The keys of ``config.json`` that the metadata give; values are of the right kind and plausible."""
    key = architecture + "."
    experts = file.metadata.get(key + "expert_count", 0)
    if experts or architecture not in MODEL_TYPES:
        return {"model_type": architecture, "num_local_experts": experts}
    hidden, heads = file.count(key + "embedding_length"), file.count(key + "attention.head_count")
    config: dict[str, Any] = {
        "num_local_experts": 0,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": file.count(key + "attention.head_count_kv", heads),
        "num_hidden_layers": file.count(key + "block_count"),
        "intermediate_size": file.count(key + "feed_forward_length"),
        "max_position_embeddings": file.count(key + "context_length"),
        "rms_norm_eps": file.number(key + "attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "is_causal": file.flag(key + "attention.causal", True),
        "hidden_act": "gelu_pytorch_tanh" if architecture in OFF_BY_ONE else "silu",
    }
    if "token_embd.weight" in file.tensors:
        rows = file.tensors["token_embd.weight"].shape[0]
        config["vocab_size"] = file.count(key + "vocab_size", rows)
    if key + "attention.key_length" in file.metadata:
        config["head_dim"] = file.count(key + "attention.key_length")
    elif hidden % heads:
        raise _wrong(file, f"its width {hidden} is not a multiple of its {heads} heads")
    head_size = config.get("head_dim", hidden // heads)
    if file.count(key + "attention.value_length", head_size) != head_size:
        raise InputError(
            "model-unsupported",
            f"{file.named_as} has values of another size than keys",
            hint="use a plain model of this family",
        )
    # Sizes are held against tensors, whose data is known to be there, before anything is made of such a size.
    queries = file.tensors.get("blk.0.attn_q.weight")
    if head_size > max(max(stored.shape) for stored in file.tensors.values()) or (
        queries is not None and queries.shape[0] != heads * head_size
    ):
        raise _wrong(file, f"{heads} heads of {head_size}; blk.0.attn_q.weight is {queries and queries.shape}")
    config |= _biases(file) | rope_keys(file, architecture, head_size) | _windows(file, architecture, config)
    if architecture in OFF_BY_ONE:
        by_width = config["num_hidden_layers"] == _SCALED_BY_WIDTH[architecture]
        config["query_pre_attn_scalar"] = hidden // heads if by_width else head_size
        for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
            if key + cap in file.metadata:
                config[cap] = file.number(key + cap)
    if architecture == "smollm3":
        layers = config["num_hidden_layers"]
        config["no_rope_layers"] = [int((layer + 1) % 4 != 0) for layer in range(min(layers, len(file.tensors)))]
    return config


def _biases(file: GgufFile) -> dict[str, Any]:
    """Whether projections have biases; the tensors tell."""
    return {
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensors,
    }


def _windows(file: GgufFile, architecture: str, config: Mapping[str, Any]) -> dict[str, Any]:
    """The window of attention, and which layers have it."""
    key = architecture + ".attention.sliding_window"
    # Zero says that there is none, and is how a file says so of a family that usually has one.
    window = file.count(key) if file.metadata.get(key) else 0
    if architecture == "gemma2" and key not in file.metadata:
        window = 4096
    if architecture in ("qwen2", "qwen3"):
        return {"use_sliding_window": False, "sliding_window": None}
    found: dict[str, Any] = {"sliding_window": window or None}
    if architecture in OFF_BY_ONE:
        layers = min(config["num_hidden_layers"], len(file.tensors))
        every = 2 if architecture == "gemma2" else 6
        pattern = file.metadata.get(key + "_pattern")
        if isinstance(pattern, list):
            slides = [bool(item) for item in pattern]
        else:
            every = file.count(key + "_pattern", every)
            slides = [(layer + 1) % every != 0 for layer in range(layers)]
        found["layer_types"] = ["sliding_attention" if slide and window else "full_attention" for slide in slides]
    return found


def _tensors(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Stored]:
    architecture = file.architecture
    found: dict[str, Stored] = {}
    for stored in file.tensors.values():
        if stored.name in (FACTORS, LONG_FACTORS, SHORT_FACTORS):
            continue  # they are in the configuration
        name = safetensors_name(architecture, stored.name) or stored.name
        heads = 0
        if architecture in PERMUTED and ".attn_q." in stored.name:
            heads = config["num_attention_heads"]
        if architecture in PERMUTED and ".attn_k." in stored.name:
            heads = config["num_key_value_heads"]
        if heads and stored.shape[0] % (2 * heads):
            raise _wrong(file, f"{stored.name} has {stored.shape[0]} rows, which {heads} heads do not divide")
        less = 1.0 if architecture in OFF_BY_ONE and stored.name.endswith("norm.weight") else 0.0
        found[name] = _stored(file, stored, heads, less)
    return found


def _stored(file: GgufFile, stored: StoredTensor, heads: int, less: float) -> Stored:
    if heads:
        read = partial(_unpermuted, file, stored, heads)
        return Stored(stored.name, stored.shape, stored.bits, read, partial(_unpermuted_rows, file, stored, heads))
    if less:
        return Stored(stored.name, stored.shape, stored.bits, partial(_lessened, file, stored, less))
    rows = partial(read_rows, file, stored) if len(stored.shape) == 2 else None
    return Stored(stored.name, stored.shape, stored.bits, partial(read_tensor, file, stored), rows)


def _unpermuted(file: GgufFile, stored: StoredTensor, heads: int) -> Floats:
    return unpermute(read_tensor(file, stored), heads)


def _unpermuted_rows(file: GgufFile, stored: StoredTensor, heads: int, start: int, stop: int) -> Floats:
    """Rows ``start`` to ``stop`` of the tensor in order; a whole head is read for each part of one."""
    size = stored.shape[0] // heads
    first, last = start // size, -(-stop // size)
    rows = unpermute(read_rows(file, stored, first * size, last * size), last - first)
    return rows[start - first * size : stop - first * size]


def unpermute(rows: Floats, heads: int) -> Floats:
    """Rows ``[heads * head_size, ...]`` with each head's neighbouring pairs moved apart into its two halves."""
    size = rows.shape[0] // heads
    return rows.reshape(heads, size // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def _lessened(file: GgufFile, stored: StoredTensor, less: float) -> Floats:
    result: Floats = read_tensor(file, stored) - np.float32(less)
    return result


def _wrong(file: GgufFile, what: str) -> InputError:
    return InputError(
        "gguf-metadata-wrong",
        f"the metadata of {file.named_as} does not fit together: {what}",
        hint="convert the checkpoint again with a current converter",
    )
