"""What a decoder is, in numbers: all that the one canonical graph (``checkpoint``) can be told.

A family module fills in a ``Form`` and names a ``Weight`` for each of ``weight_shapes``. What families have in
common is a field without a default; what only some of them have is a field whose default means *not there*.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ruvcompile.matrices import Floats

EMBED = "embed.weight"
HEAD = "head.weight"
ROTARY = "rotary"
"""Name of the rotary table of a decoder that has only one."""

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Rotary:
    """A rotary table. ``frequencies`` are angles per position, one per pair of channels that are rotated (fewer than
    ``head_size / 2`` where a part of each head is left alone); cosines and sines are multiplied by ``gain``.
    """

    frequencies: tuple[float, ...]
    gain: float = 1.0


@dataclass(frozen=True)
class Layer:
    """What may differ from layer to layer.

    ``window`` is how many positions a token sees, itself the last of them; 0 for all. ``rotary`` names the table in
    ``Form.rotaries``; None for a layer that rotates nothing.
    """

    window: int = 0
    rotary: str | None = ROTARY


@dataclass(frozen=True)
class Form:
    """A decoder in numbers.

    Args:
        layers: one entry for each.
        context: the most positions the rotary tables are made for.
        epsilon: of every norm.
        rotaries: the tables by name.
        tied: whether the head is the embedding, transposed.
        activation: of the gate: ``silu``, ``gelu`` or ``gelu_tanh``.
        biased: the projections that have a bias, as ``attn.q_proj``.
        qk_norm: whether queries and keys are normed, head by head, before they are rotated.
        post_norms: whether what attention and MLP yield is normed before it is added.
        scale: of attention scores; None for ``1 / sqrt(head_size)``.
        attention_cap: scores are bounded to +- this by a tanh; 0 for not at all.
        logit_cap: so are the logits.
        embedding_scale: the embedding is multiplied by it as it is read.
    """

    layers: tuple[Layer, ...]
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    context: int
    epsilon: float
    rotaries: Mapping[str, Rotary]
    tied: bool
    activation: str = "silu"
    biased: frozenset[str] = field(default=frozenset())
    qk_norm: bool = False
    post_norms: bool = False
    scale: float | None = None
    attention_cap: float = 0.0
    logit_cap: float = 0.0
    embedding_scale: float = 1.0


@dataclass(frozen=True)
class Weight:
    """A weight in canonical orientation. ``source`` is its name in the file, for messages; ``read`` decodes it anew.

    ``rows``, if there is one, decodes some rows as they lie in the file (``Stored.rows``), which are the columns of a
    linear weight here.
    """

    source: str
    shape: Shape
    bits: int
    read: Callable[[], Floats]
    rows: Callable[[int, int], Floats] | None = None


def weight_shapes(form: Form) -> dict[str, Shape]:
    """Name and shape of every weight the form has, in the order of the graph; the tied head is among them."""
    shapes: dict[str, Shape] = {EMBED: (form.vocab, form.hidden)}
    for layer in range(len(form.layers)):
        for name, shape in _layer_shapes(form).items():
            shapes[f"layers.{layer}.{name}"] = shape
    return shapes | {"final_norm.weight": (form.hidden,), HEAD: (form.hidden, form.vocab)}


def _layer_shapes(form: Form) -> dict[str, Shape]:
    queries, keys = form.heads * form.head_size, form.kv_heads * form.head_size
    linear = {
        "attn.q_proj": (form.hidden, queries),
        "attn.k_proj": (form.hidden, keys),
        "attn.v_proj": (form.hidden, keys),
        "attn.o_proj": (queries, form.hidden),
        "mlp.gate_proj": (form.hidden, form.ffn),
        "mlp.up_proj": (form.hidden, form.ffn),
        "mlp.down_proj": (form.ffn, form.hidden),
    }
    shapes: dict[str, Shape] = {"attn_norm.weight": (form.hidden,)}
    for name, shape in linear.items():
        if name == "mlp.gate_proj":
            shapes["mlp_norm.weight"] = (form.hidden,)
        shapes[f"{name}.weight"] = shape
        if name in form.biased:
            shapes[f"{name}.bias"] = shape[1:]
    if form.qk_norm:
        shapes |= {"attn.q_norm.weight": (form.head_size,), "attn.k_norm.weight": (form.head_size,)}
    if form.post_norms:
        shapes |= {"attn.post_norm.weight": (form.hidden,), "mlp.post_norm.weight": (form.hidden,)}
    return shapes
