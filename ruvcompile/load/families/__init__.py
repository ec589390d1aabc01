"""The families of decoders, each in one small file, and how to add one.

A family is told by its difference from a plain llama, in the words of ``config.json`` and of safetensors, whatever
file the checkpoint is in (``load/stored.py``). A family module has

* ``MODEL_TYPES``: the values of ``model_type`` that it stands for;
* ``describe(checkpoint)``: the ``Form`` of the decoder, out of its configuration; mostly ``plain_form`` and a
  ``replace`` of what the family has besides;
* ``weights(checkpoint, form)``: a ``Weight`` for each of ``weight_shapes(form)``; mostly ``named_weights``, after
  tensors that are stored otherwise (fused, off by one) have been put right with ``stored_as``.

and is named in ``FAMILIES``. To add one: read what its reference implementation does between ``input_ids`` and the
logits, and look for each step in the graph of ``load/checkpoint.py``. If a step is not there, the form gets a field
whose default is *not there*, the graph draws it, and ``lower/`` learns what its back end makes of it. Mind the
defaults of keys that checkpoints leave out. Then the family gets a case in
``tests/reference/transformers_reference.py``: a tiny random model, built by transformers itself, must give the same
logits within 1e-4 and the same 64 tokens. A family that is not proven there is not supported.

What a decoder may have in this form::

    embedding (scaled) -> layers -> norm -> head (tied or not, capped)
    layer: norm -> q, k, v (biased; q and k normed by head) -> rotary (table of the layer, part of a head, or none)
           -> attention (scaled, capped, windowed) -> o (biased) -> (norm) -> + residual
           norm -> gate, up (biased) -> silu or gelu -> down (biased) -> (norm) -> + residual
"""

from __future__ import annotations

import importlib
from typing import Protocol

from ruvcompile.errors import InputError
from ruvcompile.load.form import Form, Weight
from ruvcompile.load.stored import Checkpoint

FAMILIES = {
    "gemma": f"{__name__}.gemma",
    "gemma2": f"{__name__}.gemma2",
    "gemma3_text": f"{__name__}.gemma3",
    "llama": f"{__name__}.llama",
    "mistral": f"{__name__}.mistral",
    "phi3": f"{__name__}.phi3",
    "qwen2": f"{__name__}.qwen2",
    "qwen3": f"{__name__}.qwen3",
    "smollm3": f"{__name__}.smollm3",
}
"""Where the module of each ``model_type`` is; imported on demand."""

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


class Family(Protocol):
    """What a family module offers."""

    MODEL_TYPES: tuple[str, ...]

    def describe(self, checkpoint: Checkpoint) -> Form:
        """The form of the decoder, out of its configuration."""

    def weights(self, checkpoint: Checkpoint, form: Form) -> dict[str, Weight]:
        """Every canonical weight of the form."""


def family_of(checkpoint: Checkpoint) -> Family:
    """The family of a checkpoint.

    Raises:
        InputError: it is of none that is known here, a mixture of experts, or stored in a form nobody here reads.
    """
    kind = checkpoint.model_type
    experts = next((count for key in _EXPERTS if (count := checkpoint.config.get(key))), None)
    if experts or "moe" in kind or kind in ("mixtral", "gpt_oss", "deepseek_v2", "deepseek_v3", "dbrx"):
        many = f"{experts} experts" if experts else "experts"
        raise InputError(
            "model-unsupported",
            f"{checkpoint.named_as} is a mixture of {many} ({kind})",
            hint="use a dense model; experts are not supported yet",
        )
    if kind not in FAMILIES:
        raise InputError(
            "model-unsupported",
            f"{checkpoint.named_as} is of architecture {kind!r}, which is not among those that are read directly",
            context=[f"read directly: {', '.join(sorted(FAMILIES))}"],
            hint="any other goes through torch: install it for CPUs, then pip install 'ruvcompile[huggingface]'",
        )
    if checkpoint.config.get("quantization_config"):
        raise InputError(
            "model-unsupported",
            f"{checkpoint.named_as} is stored quantised, in a form that is not read",
            hint="give the float checkpoint (16 bits), or a GGUF file",
        )
    family: Family = importlib.import_module(FAMILIES[kind])
    return family


__all__ = ["FAMILIES", "Family", "family_of"]
