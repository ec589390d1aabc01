"""What a decoder of each family computes, written down a second time: numpy, float64, straight from ``config.json``.

Nothing of the code under test is used, and nothing is fast: every position sees all that it may see, at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def logits(config: Mapping[str, Any], tensors: Mapping[str, npt.NDArray[Any]], tokens: Sequence[int]) -> Array:
    """Logits ``[tokens, vocab]`` of a model under the names and in the layout of safetensors."""
    model = _Model(config, {name: array.astype(np.float64) for name, array in tensors.items()})
    return model.logits(tokens)


class _Model:
    def __init__(self, config: Mapping[str, Any], tensors: Mapping[str, Array]) -> None:
        self.config, self.tensors = config, tensors
        self.kind: str = config["model_type"]
        self.gemma = self.kind.startswith("gemma")
        self.heads, self.kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
        self.size = config.get("head_dim") or config["hidden_size"] // self.heads

    def logits(self, tokens: Sequence[int]) -> Array:
        table = self.tensors["model.embed_tokens.weight"]
        x = table[list(tokens)] * (self.config["hidden_size"] ** 0.5 if self.gemma else 1)
        before, after = ("pre", "post") if self.gemma else ("", "")
        for layer in range(self.config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            change = self.attention(layer, self.norm(x, at + "input_layernorm"))
            if self.gemma:
                change = self.norm(change, at + "post_attention_layernorm")
            x = x + change
            name = f"{before}_feedforward_layernorm" if self.gemma else "post_attention_layernorm"
            change = self.mlp(at + "mlp.", self.norm(x, at + name))
            x = x + (self.norm(change, f"{at}{after}_feedforward_layernorm") if self.gemma else change)
        found = self.norm(x, "model.norm") @ self.tensors.get("lm_head.weight", table).T
        cap = self.config.get("final_logit_softcapping")
        return cap * np.tanh(found / cap) if cap else found

    def norm(self, x: Array, name: str) -> Array:
        scale = self.tensors[name + ".weight"] + (1 if self.gemma else 0)
        result: Array = x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * scale
        return result

    def linear(self, x: Array, name: str) -> Array:
        result: Array = x @ self.tensors[name + ".weight"].T + self.tensors.get(name + ".bias", 0)
        return result

    def mlp(self, at: str, x: Array) -> Array:
        if self.kind == "phi3":
            gate, up = np.split(self.linear(x, at + "gate_up_proj"), 2, -1)
        else:
            gate, up = self.linear(x, at + "gate_proj"), self.linear(x, at + "up_proj")
        if self.gemma:
            active = gate / 2 * (1 + np.tanh((2 / np.pi) ** 0.5 * (gate + 0.044715 * gate**3)))
        else:
            active = gate / (1 + np.exp(-gate))
        return self.linear(active * up, at + "down_proj")

    def attention(self, layer: int, x: Array) -> Array:
        at, count = f"model.layers.{layer}.self_attn.", len(x)
        queries, keys = self.heads * self.size, self.kv_heads * self.size
        if self.kind == "phi3":
            parts = np.split(self.linear(x, at + "qkv_proj"), [queries, queries + keys], -1)
        else:
            parts = [self.linear(x, f"{at}{part}_proj") for part in "qkv"]
        query, key, value = (part.reshape(count, -1, self.size) for part in parts)
        if self.kind in ("qwen3", "gemma3_text"):
            query, key = self.norm(query, at + "q_norm"), self.norm(key, at + "k_norm")
        query, key = self.rotate(layer, query), self.rotate(layer, key)
        key, value = (np.repeat(each, self.heads // self.kv_heads, axis=1) for each in (key, value))
        scores = np.einsum("qhd,khd->hqk", query, key) * self.config.get("query_pre_attn_scalar", self.size) ** -0.5
        if cap := self.config.get("attn_logit_softcapping"):
            scores = cap * np.tanh(scores / cap)
        back = np.arange(count)[:, None] - np.arange(count)[None]
        scores = np.where((back < 0) | (back >= self.window(layer)), -np.inf, scores)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        return self.linear(np.einsum("hqk,khd->qhd", shares, value).reshape(count, -1), at + "o_proj")

    def local(self, layer: int) -> bool:
        """Whether a layer is windowed in a family where that goes by its number."""
        return layer % 2 == 0 if self.kind == "gemma2" else (layer + 1) % self.config["sliding_window_pattern"] != 0

    def window(self, layer: int) -> int:
        window = self.config.get("sliding_window") or 1 << 30
        if self.kind in ("qwen2", "qwen3"):
            asked = self.config["use_sliding_window"] and layer >= self.config["max_window_layers"]
            return window if asked else 1 << 30
        return window if not self.gemma or self.local(layer) else 1 << 30

    def rotate(self, layer: int, x: Array) -> Array:
        if self.kind == "smollm3" and (layer + 1) % self.config["no_rope_layer_interval"] == 0:
            return x
        local = self.kind == "gemma3_text" and self.local(layer)
        base = self.config["rope_local_base_freq" if local else "rope_theta"]
        scaling = {} if local else self.config.get("rope_scaling") or {}
        rotated = int(self.size * self.config.get("partial_rotary_factor", 1))
        angles, gain = self.frequencies(base, rotated, scaling)
        turns = np.arange(len(x))[:, None] * angles
        cosines, sines = np.cos(turns)[:, None] * gain, np.sin(turns)[:, None] * gain
        first, second, rest = x[..., : rotated // 2], x[..., rotated // 2 : rotated], x[..., rotated:]
        return np.concatenate([first * cosines - second * sines, second * cosines + first * sines, rest], -1)

    def frequencies(self, base: float, rotated: int, scaling: Mapping[str, Any]) -> tuple[Array, float]:
        pairs = np.arange(rotated // 2)
        angles = base ** (-2 * pairs / rotated)
        kind, factor = scaling.get("rope_type"), scaling.get("factor", 1.0)
        if kind == "linear":
            return angles / factor, 1.0
        if kind == "longrope":
            longest, original = (self.config[p + "max_position_embeddings"] for p in ("", "original_"))
            return angles / scaling["short_factor"], np.sqrt(1 + np.log(longest / original) / np.log(original))
        original = scaling.get("original_max_position_embeddings", 1)
        lengths = 2 * np.pi / angles
        if kind == "llama3":
            smooth = (original / lengths - scaling["low_freq_factor"]) / (
                scaling["high_freq_factor"] - scaling["low_freq_factor"]
            )
            between = (1 - smooth) * angles / factor + smooth * angles
            slow, fast = smooth < 0, smooth > 1
            return np.where(slow, angles / factor, np.where(fast, angles, between)), 1.0
        if kind == "yarn":
            low, high = (
                rotated * np.log(original / (turns * 2 * np.pi)) / (2 * np.log(base))
                for turns in (scaling.get("beta_fast", 32), scaling.get("beta_slow", 1))
            )
            low, high = max(np.floor(low), 0), min(np.ceil(high), rotated - 1)
            ramp = np.clip((pairs - low) / (high - low), 0, 1)
            return angles / factor * ramp + angles * (1 - ramp), 0.1 * np.log(factor) + 1
        return angles, 1.0
