"""The llama family in a GGUF file: its metadata, its tensor names, and how its rows lie.

Llama checkpoints are written to GGUF with the rows of the query and key projections permuted, head by head, so that
a rotary embedding over neighbouring pairs gives what the model was trained with (over the two halves of a head). The
canonical form is the half-split one, so the permutation is undone here while the weight is read: whole rows
move, which is exact whatever their quantisation.

What the family can have and the canonical form has not (experts, biases, YaRN, partial rotary) is refused by name.
A tensor that nothing here accounts for is refused too: ignoring it would give a wrong answer without a word.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ruvcompile.errors import InputError
from ruvcompile.load.form import EMBED, HEAD, ROTARY, Floats, Form, Layer, Rotary, Weight, weight_shapes
from ruvcompile.load.gguf_data import read_tensor
from ruvcompile.load.gguf_file import GgufFile, StoredTensor

ARCHITECTURE = "llama"

_WHOLE = {EMBED: "token_embd.weight", "final_norm.weight": "output_norm.weight", HEAD: "output.weight"}
_LAYER = {
    "attn_norm.weight": "attn_norm.weight",
    "attn.q_proj.weight": "attn_q.weight",
    "attn.k_proj.weight": "attn_k.weight",
    "attn.v_proj.weight": "attn_v.weight",
    "attn.o_proj.weight": "attn_output.weight",
    "mlp_norm.weight": "ffn_norm.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"
_DERIVED = {_ROPE_FACTORS, "rope_factors_long.weight", "rope_factors_short.weight"}


def describe(file: GgufFile) -> Form:
    """The form of the decoder in ``file``, out of its metadata.

    Raises:
        InputError: a key is missing or wrong, or the model has something the canonical form has not.
    """
    key = ARCHITECTURE + "."
    if file.metadata.get(key + "expert_count"):
        experts = file.metadata[key + "expert_count"]
        raise _unsupported(
            file, f"is a mixture of {experts} experts", "use a dense model; experts are not supported yet"
        )
    hidden = file.count(key + "embedding_length")
    heads = file.count(key + "attention.head_count")
    kv_heads = file.count(key + "attention.head_count_kv", heads)
    if hidden % heads and key + "attention.key_length" not in file.metadata:
        raise _wrong(file, f"its width {hidden} is not a multiple of its {heads} heads")
    head_size = file.count(key + "attention.key_length", hidden // heads)
    layers = file.count(key + "block_count")
    # Sizes are held against tensors, whose data is known to be there, before anything is made of such a size.
    _tensor(file, f"blk.{layers - 1}.attn_q.weight")
    queries = _tensor(file, "blk.0.attn_q.weight").shape[0]
    if heads % kv_heads or head_size % 2 or heads * head_size != queries:
        raise _wrong(
            file,
            f"{heads} heads of {head_size} over {kv_heads} key/value heads; blk.0.attn_q.weight has {queries} rows",
        )
    if file.count(key + "attention.value_length", head_size) != head_size:
        raise _unsupported(file, "has values of another size than keys")
    if file.count(key + "rope.dimension_count", head_size) != head_size:
        raise _unsupported(file, "rotates only a part of each head")
    embedding = _tensor(file, _WHOLE[EMBED])
    context = file.count(key + "context_length")
    return Form(
        layers=(Layer(),) * layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=file.count(key + "feed_forward_length"),
        vocab=file.count(key + "vocab_size", embedding.shape[0]),
        # Within one window, attention over a sliding window is plain attention.
        context=min(context, file.count(key + "attention.sliding_window", context)),
        epsilon=file.number(key + "attention.layer_norm_rms_epsilon"),
        rotaries={ROTARY: Rotary(_inverse_frequencies(file, head_size))},
        tied=_WHOLE[HEAD] not in file.tensors,
    )


def weights(file: GgufFile, form: Form) -> dict[str, Weight]:
    """Every canonical weight of ``form``, lazily read from ``file``.

    Raises:
        InputError: a tensor is missing, or there is one that the family does not have.
    """
    found: dict[str, Weight] = {}
    used = set(_DERIVED)
    for name in weight_shapes(form):
        stored = _tensor(file, _WHOLE[EMBED] if name == HEAD and form.tied else _stored_name(name))
        used.add(stored.name)
        found[name] = _weight(file, form, name, stored)
    extra = sorted(file.tensors.keys() - used)
    if extra:
        what = f"has {len(extra)} tensors that a plain llama does not have"
        raise _unsupported(file, what, context=[f"the first are: {', '.join(extra[:4])}"])
    return found


def _weight(file: GgufFile, form: Form, name: str, stored: StoredTensor) -> Weight:
    heads = form.heads if "q_proj" in name else form.kv_heads if "k_proj" in name else 0
    if name == EMBED or len(stored.shape) != 2:
        return Weight(stored.name, stored.shape, stored.bits, partial(read_tensor, file, stored))
    read = partial(_read_linear, file, stored, heads)
    return Weight(stored.name, stored.shape[::-1], stored.bits, read)


def _read_linear(file: GgufFile, stored: StoredTensor, heads: int) -> Floats:
    """A stored ``[out, in]`` as a view ``[in, out]``; ``heads`` > 0 puts permuted rotary rows back in order."""
    rows = read_tensor(file, stored)
    if heads:
        rows = unpermute(rows, heads)
    return rows.T


def unpermute(rows: Floats, heads: int) -> Floats:
    """Rows ``[heads * head_size, in]`` with each head's neighbouring pairs moved apart into its two halves."""
    size, width = rows.shape[0] // heads, rows.shape[1]
    return rows.reshape(heads, size // 2, 2, width).swapaxes(1, 2).reshape(rows.shape)


def _inverse_frequencies(file: GgufFile, head_size: int) -> tuple[float, ...]:
    key = ARCHITECTURE + ".rope."
    base = file.number(key + "freq_base", 10000.0)
    frequencies = base ** (-np.arange(0, head_size, 2, dtype=np.float64) / head_size)
    scaling = file.metadata.get(key + "scaling.type", "none")
    if scaling == "linear":
        frequencies /= file.number(key + "scaling.factor")
    elif scaling != "none":
        raise _unsupported(file, f"scales its rotary embedding by the method {scaling!r}")
    if _ROPE_FACTORS in file.tensors:
        factors = read_tensor(file, file.tensors[_ROPE_FACTORS])
        if factors.shape != frequencies.shape:
            raise _wrong(file, f"{_ROPE_FACTORS} has shape {factors.shape}, not {frequencies.shape}")
        frequencies /= factors
    return tuple(frequencies.tolist())


def _stored_name(name: str) -> str:
    if name in _WHOLE:
        return _WHOLE[name]
    _, layer, rest = name.split(".", 2)
    return f"blk.{layer}.{_LAYER[rest]}"


def _tensor(file: GgufFile, name: str) -> StoredTensor:
    if name in file.tensors:
        return file.tensors[name]
    raise InputError(
        "gguf-tensor-missing",
        f"{file.named_as} has no tensor {name}",
        hint="the file is incomplete; download or convert it again",
    )


def _wrong(file: GgufFile, what: str) -> InputError:
    return InputError(
        "gguf-metadata-wrong",
        f"the metadata of {file.named_as} does not fit together: {what}",
        hint="convert the checkpoint again with a current converter",
    )


def _unsupported(
    file: GgufFile, what: str, hint: str = "use a plain llama model", context: list[str] | None = None
) -> InputError:
    return InputError("model-unsupported", f"{file.named_as} {what}", context=context or [], hint=hint)
