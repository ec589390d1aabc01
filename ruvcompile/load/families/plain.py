"""What the families share: the form of a plain llama, and the names that its weights have in a checkpoint.

A family starts from ``plain_form`` and says what it has besides; it names its weights by ``named_weights``, with the
names that differ. Both are held against the tensors that are there: a size that the tensors contradict, a tensor that
is missing and a tensor that nothing accounts for are errors. Ignoring one would give a wrong answer without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial

from ruvcompile.errors import InputError
from ruvcompile.load.families.config import Config
from ruvcompile.load.families.rotary import context_of, rotary_of
from ruvcompile.load.form import EMBED, HEAD, ROTARY, Form, Layer, Weight, weight_shapes
from ruvcompile.load.stored import Checkpoint, Stored
from ruvcompile.matrices import Floats

MOST_POSITIONS = 1 << 24
"""More than any model has; rotary tables are made for so many."""
TABLE, HEAD_TENSOR = "model.embed_tokens.weight", "lm_head.weight"
ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
ATTENTION = frozenset(f"attn.{part}_proj" for part in "qkvo")
QKV = ATTENTION - {"attn.o_proj"}
MLP = frozenset(f"mlp.{part}_proj" for part in ("gate", "up", "down"))

_LAYER = {
    "attn_norm": "input_layernorm",
    "attn.q_norm": "self_attn.q_norm",
    "attn.k_norm": "self_attn.k_norm",
    "mlp_norm": "post_attention_layernorm",
    **{name: name.replace("attn.", "self_attn.") for name in ATTENTION | MLP},
}
SANDWICH = {
    "attn.post_norm": "post_attention_layernorm",
    "mlp_norm": "pre_feedforward_layernorm",
    "mlp.post_norm": "post_feedforward_layernorm",
}
"""The names of norms where each part has one before and one behind it."""
# Written by old versions of converters; made from the configuration.
_DERIVED = re.compile(r".*\.rotary_emb\.inv_freq")


def plain_form(
    checkpoint: Checkpoint, config: Config, *, tied: bool = False, base: float = 10000.0, partial: bool = False
) -> Form:
    """The form of a llama without any speciality.

    Args:
        checkpoint: its tensors tell whether there is a head of its own.
        config: the family's defaults are in it.
        tied: what the family means where the configuration does not say whether the head is tied.
        base: of the rotary table, where the configuration names none.
        partial: whether the family may rotate only a part of each head.

    Raises:
        InputError: a key is missing or wrong, or the model has something the canonical form has not.
    """
    hidden, heads = config.count("hidden_size"), config.count("num_attention_heads")
    kv_heads = config.count("num_key_value_heads", heads)
    if not config.keys.get("head_dim") and hidden % heads:
        raise config.wrong(f"its width {hidden} is not a multiple of its {heads} heads")
    head_size = config.count("head_dim", hidden // heads)
    if heads % kv_heads or head_size % 2:
        raise config.wrong(f"{heads} heads of {head_size} over {kv_heads} key/value heads")
    act = config.text("hidden_act", config.text("hidden_activation", "silu"))
    if act not in ACTIVATIONS:
        raise config.unsupported(f"has the activation {act!r}")
    if not config.flag("is_causal", True) or config.keys.get("use_bidirectional_attention"):
        raise config.unsupported("sees what comes after a token, as an encoder does")
    layers = config.count("num_hidden_layers")
    # A size is held against what is there before anything is made of that size.
    if layers > len(checkpoint.tensors):
        raise config.wrong(f"it has {layers} layers and {len(checkpoint.tensors)} tensors")
    widest = max((size for stored in checkpoint.tensors.values() for size in stored.shape), default=0)
    if max(hidden, head_size) > widest:
        raise config.wrong(f"it is {hidden} wide with heads of {head_size}, and no tensor has a side above {widest}")
    context = context_of(config)
    if not 1 < context <= MOST_POSITIONS:  # one would leave no room for a prompt and an answer
        raise config.wrong(f"it is said to know {context} position{'s' if context > 1 else ''}")
    return Form(
        layers=(Layer(),) * layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        ffn=config.count("intermediate_size"),
        vocab=config.count("vocab_size", next(iter(_tensor(checkpoint, TABLE).shape), 0)),
        context=context,
        epsilon=config.number("rms_norm_eps"),
        rotaries={ROTARY: rotary_of(config, head_size, base, partial=partial)},
        # Where a checkpoint has a head in spite of all, that one is right; it may well be a copy.
        tied=config.flag("tie_word_embeddings", tied) and HEAD_TENSOR not in checkpoint.tensors,
        activation=ACTIVATIONS[act],
    )


def biases(config: Config, attention: Collection[str] = ATTENTION, mlp: Collection[str] = MLP) -> frozenset[str]:
    """The projections that have a bias, by ``attention_bias`` and ``mlp_bias``."""
    found = frozenset(attention) if config.flag("attention_bias", False) else frozenset()
    return found | (frozenset(mlp) if config.flag("mlp_bias", False) else frozenset())


def windowed(config: Config, layers: int, otherwise: Callable[[int], bool]) -> tuple[bool, ...]:
    """Which layers have a window: by ``layer_types`` if it is there, else those whose number ``otherwise`` picks."""
    named = config.items("layer_types", layers)
    if named is None:
        return tuple(map(otherwise, range(layers)))
    for kind in named:
        if kind not in ("sliding_attention", "full_attention"):
            raise config.unsupported(f"has layers of the type {kind!r}")
    return tuple(kind == "sliding_attention" for kind in named)


def windows(form: Form, config: Config, chosen: Sequence[bool]) -> tuple[Layer, ...]:
    """The layers of ``form``, the chosen ones with a window of ``sliding_window`` positions, if there is one."""
    window = config.count("sliding_window") if config.keys.get("sliding_window") is not None else 0
    # A window as long as the context hides nothing.
    window = window if window < form.context else 0
    return tuple(replace(layer, window=window if yes else 0) for layer, yes in zip(form.layers, chosen, strict=True))


def named_weights(checkpoint: Checkpoint, form: Form, renamed: Mapping[str, str] | None = None) -> dict[str, Weight]:
    """Every canonical weight of ``form``, lazily read from ``checkpoint``.

    Args:
        checkpoint: the tensors; a family that stores some otherwise than llama has put that right (``stored_as``).
        form: what weights there are.
        renamed: names within a layer that differ from llama's, as ``SANDWICH``.

    Raises:
        InputError: a tensor is missing, or there is one that the form does not account for.
    """
    found: dict[str, Weight] = {}
    used: set[str] = set()
    for name in weight_shapes(form):
        tied = name == HEAD and form.tied
        stored_name = TABLE if tied else _stored_name(name, renamed or {})
        used.add(stored_name)
        found[name] = _weight(name, _tensor(checkpoint, stored_name))
    extra = sorted(name for name in checkpoint.tensors.keys() - used if not _DERIVED.fullmatch(name))
    if extra:
        raise InputError(
            "model-unsupported",
            f"{checkpoint.named_as} has {len(extra)} tensors that its family does not have",
            context=[f"{checkpoint.model_type}, as it is configured; the first are: {', '.join(extra[:4])}"],
            hint="use a plain model of this family",
        )
    return found


def stored_as(stored: Stored, change: Callable[[Floats], Floats], shape: tuple[int, ...] | None = None) -> Stored:
    """A tensor that is made of a stored one when it is read."""
    return replace(stored, shape=shape or stored.shape, read=partial(_changed, stored.read, change), rows=None)


def _changed(read: Callable[[], Floats], change: Callable[[Floats], Floats]) -> Floats:
    return change(read())


def _stored_name(name: str, renamed: Mapping[str, str]) -> str:
    """The name in a checkpoint of a canonical weight: ``layers.0.attn.q_proj.bias`` and the like."""
    whole = {EMBED: TABLE, HEAD: HEAD_TENSOR, "final_norm.weight": "model.norm.weight"}
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    part, _, kind = rest.rpartition(".")
    return f"model.layers.{layer}.{ {**_LAYER, **renamed}[part] }.{kind}"


def _weight(name: str, stored: Stored) -> Weight:
    if name == EMBED or len(stored.shape) != 2:
        return Weight(stored.source, stored.shape, stored.bits, stored.read, stored.rows)
    return Weight(stored.source, stored.shape[::-1], stored.bits, partial(_transposed, stored), stored.rows)


def _transposed(stored: Stored) -> Floats:
    """A stored ``[out, in]`` as a view ``[in, out]``."""
    return stored.read().T


def missing(named_as: str, tensor: str) -> InputError:
    """The error for a tensor that is not there."""
    hint = "the file is incomplete, or its configuration is another model's; get or convert it again"
    if tensor == HEAD_TENSOR:
        hint = (
            "if it gives text, its configuration lacks tie_word_embeddings = true, or the file is incomplete; "
            "one that classifies goes through torch: install it for CPUs, then pip install 'ruvcompile[huggingface]'"
        )
    return InputError("tensor-missing", f"{named_as} has no tensor {tensor}", hint=hint)


def _tensor(checkpoint: Checkpoint, name: str) -> Stored:
    if name in checkpoint.tensors:
        return checkpoint.tensors[name]
    error = missing(checkpoint.named_as, name)
    ending = [other for other in checkpoint.tensors if other.endswith(f".{name}")]
    if ending:
        raise InputError(
            error.ref,
            error.message,
            context=[f"it has {ending[0]}"],
            hint="it was saved with a wrapper around the model; save the model inside of it",
        )
    raise error
