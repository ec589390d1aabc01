"""Tiny random checkpoints of every family, as a Hugging Face directory and as a GGUF file of the same weights.

The directory is written by hand after the published format of safetensors; the GGUF is made the way converters make
it, with the names that the ``gguf`` package gives to tensors and keys. Neither uses anything of the code under test.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from gguf import MODEL_ARCH, GGMLQuantizationType, quants
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from tests.models import CHAT_TEMPLATE, SPECIALS, add_tokenizer, tiny_vocabulary

Tensors = dict[str, npt.NDArray[np.float32]]
Config = dict[str, Any]

VOCAB = 300
HIDDEN, HEADS, KV_HEADS, FFN = 64, 4, 2, 96
CODES = {"F32": "<f4", "F64": "<f8", "F16": "<f2"}

_PLAIN: Config = {
    "hidden_size": HIDDEN, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "intermediate_size": FFN,
    "num_hidden_layers": 3, "vocab_size": VOCAB, "max_position_embeddings": 256, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "tie_word_embeddings": True, "hidden_act": "silu", "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GEMMA: Config = {
    **_PLAIN, "head_dim": 32, "query_pre_attn_scalar": 32, "sliding_window": 16, "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LONG = {"rope_type": "longrope", "short_factor": [1.0 + i / 8 for i in range(8)], "long_factor": [4.0] * 8}

CONFIGS: dict[str, Config] = {
    "llama": {**_PLAIN, "model_type": "llama"},
    "llama-untied": {**_PLAIN, "model_type": "llama", "tie_word_embeddings": False, "attention_bias": True},
    "llama-llama3": {
        **_PLAIN, "model_type": "llama", "rope_theta": 500000.0, "max_position_embeddings": 16384,
        "rope_scaling": {**_LLAMA3, "original_max_position_embeddings": 8192},
    },
    "llama-linear": {**_PLAIN, "model_type": "llama", "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-yarn": {
        **_PLAIN, "model_type": "llama",
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 24.0},
    },
    "mistral": {**_PLAIN, "model_type": "mistral", "sliding_window": 16, "head_dim": 32},
    "qwen2": {**_PLAIN, "model_type": "qwen2", "use_sliding_window": False},
    "qwen3": {**_PLAIN, "model_type": "qwen3", "head_dim": 32, "use_sliding_window": False},
    "phi3": {
        **_PLAIN, "model_type": "phi3", "sliding_window": 16, "tie_word_embeddings": False,
        "original_max_position_embeddings": 256,
    },
    "phi3-long": {
        **_PLAIN, "model_type": "phi3", "max_position_embeddings": 1024, "original_max_position_embeddings": 256,
        "rope_scaling": _LONG, "sliding_window": None,
    },
    "phi3-partial": {
        **_PLAIN, "model_type": "phi3", "partial_rotary_factor": 0.75, "sliding_window": None,
        "original_max_position_embeddings": 256,
    },
    "gemma2": {
        **_GEMMA, "model_type": "gemma2", "attn_logit_softcapping": 20.0, "final_logit_softcapping": 10.0,
    },
    "gemma3": {
        **_GEMMA, "model_type": "gemma3_text", "num_hidden_layers": 7, "rope_theta": 1e6, "rope_local_base_freq": 1e4,
        "sliding_window_pattern": 6, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "smollm3": {
        **_PLAIN, "model_type": "smollm3", "num_hidden_layers": 5, "rope_theta": 2e6, "no_rope_layer_interval": 4,
    },
}  # fmt: skip
"""By name: one or more of each family."""

_ARCHITECTURES = {
    "llama": MODEL_ARCH.LLAMA, "mistral": MODEL_ARCH.LLAMA, "qwen2": MODEL_ARCH.QWEN2, "qwen3": MODEL_ARCH.QWEN3,
    "phi3": MODEL_ARCH.PHI3, "gemma2": MODEL_ARCH.GEMMA2, "gemma3_text": MODEL_ARCH.GEMMA3,
    "smollm3": MODEL_ARCH.SMOLLM3,
}  # fmt: skip


def random_tensors(config: Config, seed: int = 0) -> Tensors:
    """Weights for ``config`` under their names in safetensors, as float32 that float16 can hold."""
    random = np.random.default_rng(seed)
    kind, hidden, ffn = config["model_type"], config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    gemma = kind.startswith("gemma")
    found: Tensors = {}

    def add(name: str, *shape: int, scale: float | None = None) -> None:
        values = random.standard_normal(shape) * (scale or 2 * shape[-1] ** -0.5)
        found[name] = values.astype(np.float16).astype(np.float32)

    def norm(name: str, width: int) -> None:
        found[name] = (0.1 * random.standard_normal(width) + (not gemma)).astype(np.float16).astype(np.float32)

    add("model.embed_tokens.weight", config["vocab_size"], hidden, scale=0.3)
    found["model.embed_tokens.weight"][: len(SPECIALS)] *= np.float32(1 / 16)
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        for name in ("input_layernorm", "post_attention_layernorm"):
            norm(f"{at}{name}.weight", hidden)
        if gemma:
            for name in ("pre_feedforward_layernorm", "post_feedforward_layernorm"):
                norm(f"{at}{name}.weight", hidden)
        rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": hidden}
        if kind == "phi3":
            rows = {"qkv_proj": queries + 2 * keys, "o_proj": hidden}
        for name, count in rows.items():
            add(f"{at}self_attn.{name}.weight", count, queries if name == "o_proj" else hidden)
            if config.get("attention_bias") or (kind == "qwen2" and name != "o_proj"):
                add(f"{at}self_attn.{name}.bias", count, scale=0.1)
        if kind in ("qwen3", "gemma3_text"):
            norm(f"{at}self_attn.q_norm.weight", size)
            norm(f"{at}self_attn.k_norm.weight", size)
        rows = {"gate_up_proj": 2 * ffn} if kind == "phi3" else {"gate_proj": ffn, "up_proj": ffn}
        for name, count in rows.items():
            add(f"{at}mlp.{name}.weight", count, hidden)
        add(f"{at}mlp.down_proj.weight", hidden, ffn)
    norm("model.norm.weight", hidden)
    if not config["tie_word_embeddings"]:
        add("lm_head.weight", config["vocab_size"], hidden, scale=0.3)
    return found


def encode(array: npt.NDArray[np.float32], kind: str) -> bytes:
    """The bytes of ``array`` as safetensors hold them."""
    if kind == "BF16":
        return (np.ascontiguousarray(array, "<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return np.ascontiguousarray(array).astype(CODES[kind]).tobytes()


def write_safetensors(path: Path, tensors: Mapping[str, npt.NDArray[np.float32]], kind: str = "F32") -> Path:
    """One file of tensors, in the order given."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = b""
    for name, array in tensors.items():
        raw = encode(array, kind)
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def write_directory(
    path: Path, config: Config, tensors: Tensors, *, kind: str = "F32", shards: int = 1, tokenizer: bool = True
) -> Path:
    """A checkpoint directory at ``path``; with several ``shards`` it has an index."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if shards == 1:
        write_safetensors(path / "model.safetensors", tensors, kind)
    else:
        names = list(tensors)
        weight_map: dict[str, str] = {}
        for number in range(shards):
            shard = f"model-{number + 1:05}-of-{shards:05}.safetensors"
            part = {name: tensors[name] for name in names[number::shards]}
            write_safetensors(path / shard, part, kind)
            weight_map |= dict.fromkeys(part, shard)
        (path / "model.safetensors.index.json").write_text(
            json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map})
        )
    if tokenizer:
        byte_tokenizer().save(str(path / "tokenizer.json"))
        said = {
            "bos_token": SPECIALS[1],
            "eos_token": SPECIALS[2],
            "add_bos_token": False,
            "chat_template": CHAT_TEMPLATE,
        }
        (path / "tokenizer_config.json").write_text(json.dumps(said))
    return path


def byte_tokenizer(vocab: int = VOCAB) -> Tokenizer:
    """The tokenizer of a tiny GGUF, as its makers would have saved it for Hugging Face."""
    tokens, merges = tiny_vocabulary(vocab)
    pairs: Sequence[Any] = [tuple(merge.split(" ")) for merge in merges]
    tokenizer = Tokenizer(models.BPE({token: number for number, token in enumerate(tokens)}, list(pairs)))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    return tokenizer


def write_gguf(path: Path, config: Config, tensors: Tensors, kind: str = "F32", *, table: str | None = None) -> Path:
    """The GGUF file that a converter makes of a checkpoint with a byte-level tokenizer.

    ``kind`` is the type of its matrices, ``table`` that of embedding and head where it is another.
    """
    model_type = config["model_type"]
    arch = _ARCHITECTURES[model_type]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _write_keys(writer, config)
    add_tokenizer(writer, config["vocab_size"])
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    for name, array in tensors.items():
        heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
        part = name.split(".")[-2]
        if arch in (MODEL_ARCH.LLAMA, MODEL_ARCH.SMOLLM3) and part in heads:
            array = _permuted(array, heads[part])
        if model_type.startswith("gemma") and part.endswith("norm"):
            array = array + np.float32(1)
        stored = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert stored is not None, name
        wanted = kind if "layers" in name else table or kind
        type_ = GGMLQuantizationType[wanted if array.ndim == 2 else "F32"]
        writer.add_tensor(stored, quants.quantize(array, type_), raw_dtype=type_)
    for stored, factors in _factors(config).items():
        writer.add_tensor(stored, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _permuted(array: npt.NDArray[np.float32], heads: int) -> npt.NDArray[np.float32]:
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def _write_keys(writer: gguf.GGUFWriter, config: Config) -> None:
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    if "head_dim" in config:
        writer.add_key_length(size)
        writer.add_value_length(size)
    if config["model_type"] in ("llama", "mistral", "phi3", "smollm3"):
        writer.add_rope_dimension_count(int(size * config.get("partial_rotary_factor", 1.0)))
    if config.get("sliding_window") or config["model_type"] == "phi3":
        writer.add_sliding_window(config.get("sliding_window") or 0)
    if "rope_local_base_freq" in config:
        writer.add_rope_freq_base_swa(config["rope_local_base_freq"])
    if "attn_logit_softcapping" in config:
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(scaling["rope_type"]))
        writer.add_rope_scaling_factor(scaling["factor"])
    if scaling.get("rope_type") == "yarn":
        writer.add_rope_scaling_orig_ctx_len(scaling["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(scaling["beta_fast"])
    if scaling.get("rope_type") == "longrope":
        writer.add_rope_scaling_orig_ctx_len(config["original_max_position_embeddings"])
        stretch = config["max_position_embeddings"] / config["original_max_position_embeddings"]
        writer.add_rope_scaling_attn_factors(
            float(np.sqrt(1 + np.log(stretch) / np.log(config["original_max_position_embeddings"])))
        )


def _factors(config: Config) -> dict[str, list[float]]:
    """The divisors of the rotary angles that are stored as tensors."""
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "longrope":
        return {f"rope_factors_{which}.weight": scaling[f"{which}_factor"] for which in ("long", "short")}
    if scaling.get("rope_type") != "llama3":
        return {}
    size = config["hidden_size"] // config["num_attention_heads"]
    found = []
    for pair in range(size // 2):
        length = 2 * np.pi * config["rope_theta"] ** (2 * pair / size)
        original, low, high = 8192, scaling["low_freq_factor"], scaling["high_freq_factor"]
        if length < original / high:
            found.append(1.0)
        elif length > original / low:
            found.append(scaling["factor"])
        else:
            smooth = (original / length - low) / (high - low)
            found.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return {"rope_freqs.weight": found}
