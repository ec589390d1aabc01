"""The names of tensors: what GGUF calls ``blk.3.ffn_down.weight`` is ``model.layers.3.mlp.down_proj.weight``."""

from __future__ import annotations

import re

_WHOLE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_PLAIN = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Norms before and behind each part.
_GEMMA = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_OTHERS = {"gemma2": _GEMMA, "gemma3": _GEMMA, "phi3": {"ffn_up": "mlp.gate_up_proj"}}
_BLOCK = re.compile(r"blk\.(\d{1,6})\.(\w+)\.(weight|bias)")


def safetensors_name(architecture: str, name: str) -> str | None:
    """The name in safetensors of the tensor that GGUF calls ``name``; None for one that is not known."""
    block = _BLOCK.fullmatch(name)
    if block:
        layer, part, kind = block.groups()
        known = {**_PLAIN, **_OTHERS.get(architecture, {})}
        return f"model.layers.{layer}.{known[part]}.{kind}" if part in known else None
    part, _, kind = name.rpartition(".")
    return f"{_WHOLE[part]}.{kind}" if part in _WHOLE and kind in ("weight", "bias") else None
