"""The canonical form of a decoder, and the one place that builds it.

Every decoder checkpoint becomes the same graph, whatever file it came from. A family module (``llama.py``)
only describes the model (``Form``) and names its weights (``Weight``); the graph is drawn here, once, so that
every pass, lowering and test knows exactly one shape of decoder. It is standard ONNX at opset 23, nothing else,
and ONNX Runtime runs it as it is::

    input_ids ─ Gather(embed) ─┬─ RMSNormalization ─┬─ MatMul q ─ RotaryEmbedding ─┐
                               │                    ├─ MatMul k ─ RotaryEmbedding ─┤
                               │                    └─ MatMul v ───────────────────┼─ Attention ─ MatMul o ─┐
                               │                       past_key.i, past_value.i ───┘    └─ present_*.i     │
                               └─ Add ◄────────────────────────────────────────────────────────────────────┘
                                   ├─ RMSNormalization ─┬─ MatMul gate ─ SiLU ─ Mul ─ MatMul down ─┐
                                   └─ Add ◄─────────────┴─ MatMul up ──────────┘ ◄─────────────────┘
    ... more layers ...  ─ RMSNormalization ─ MatMul(head) ─ logits

Choices that the rest of the compiler relies on:

1. *Activations stay ``[batch, sequence, width]``*; heads are told to ``RotaryEmbedding`` and ``Attention`` by
   attribute. No reshape, no transpose, no shape arithmetic: a cut anywhere is a cut of plain tensors.
2. *State is explicit.* ``past_key.i`` goes in, ``present_key.i`` comes out, per layer; ``Attention`` appends the new
   keys and masks causally behind them. Back ends turn the pair into their own cache.
3. *Rotary embedding is the half-split form* with tables ``rotary.cos`` and ``rotary.sin`` ``[context, head_size / 2]``
   that all layers share and any stage can hold; frequency scaling of the model is inside the tables.
4. *A linear weight is ``[in, out]``*, as ``MatMul`` wants it; the embedding is ``[vocab, hidden]``. Where the model
   ties them, ``head.weight`` is an initializer of its own, the transpose of the same stored tensor, and its metadata
   ``ruv.tied`` names ``embed.weight``: a stage that holds one end only is complete, and a pass that quantises them
   can do it once.
5. *Weights are lazy*: ``const_value.numpy()`` decodes the stored tensor, and nothing keeps the result. Shapes and
   ``ruv.bits`` (bits per weight in the file) are known without reading.
6. *Names are addresses.* A node is ``/layers.3/attn/q_proj``; its output value is the same without the leading slash;
   its weight is ``layers.3.attn.q_proj.weight``. Every value has type and shape, with ``batch``, ``sequence``, ``past``
   and ``total`` (= past + sequence) as the only symbols.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.program import BITS, TIED

OPSET = 23
IR_VERSION = 11
EMBED = "embed.weight"
HEAD = "head.weight"
COS = "rotary.cos"
SIN = "rotary.sin"

Floats = npt.NDArray[np.float32]
Dims = tuple[int | str, ...]


@dataclass(frozen=True)
class Form:
    """A decoder in numbers. ``inverse_frequencies`` are the rotary angles per position, ``head_size / 2`` of them."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    context: int
    epsilon: float
    inverse_frequencies: tuple[float, ...]
    tied: bool


@dataclass(frozen=True)
class Weight:
    """A weight in canonical orientation. ``source`` is its name in the file, for messages; ``read`` decodes it anew."""

    source: str
    shape: tuple[int, ...]
    bits: int
    read: Callable[[], Floats]


def weight_shapes(form: Form) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight the form has, in the order of the graph; the tied head is among them."""
    queries, keys = form.heads * form.head_size, form.kv_heads * form.head_size
    shapes: dict[str, tuple[int, ...]] = {EMBED: (form.vocab, form.hidden)}
    for layer in range(form.layers):
        shapes |= {
            f"layers.{layer}.attn_norm.weight": (form.hidden,),
            f"layers.{layer}.attn.q_proj.weight": (form.hidden, queries),
            f"layers.{layer}.attn.k_proj.weight": (form.hidden, keys),
            f"layers.{layer}.attn.v_proj.weight": (form.hidden, keys),
            f"layers.{layer}.attn.o_proj.weight": (queries, form.hidden),
            f"layers.{layer}.mlp_norm.weight": (form.hidden,),
            f"layers.{layer}.mlp.gate_proj.weight": (form.hidden, form.ffn),
            f"layers.{layer}.mlp.up_proj.weight": (form.hidden, form.ffn),
            f"layers.{layer}.mlp.down_proj.weight": (form.ffn, form.hidden),
        }
    return shapes | {"final_norm.weight": (form.hidden,), HEAD: (form.hidden, form.vocab)}


def build_decoder(form: Form, weights: Mapping[str, Weight], name: str) -> ir.Model:
    """Draw the canonical graph of ``form`` over ``weights`` (one for each of ``weight_shapes``).

    Raises:
        InputError: a weight does not have the shape that the form asks for.
    """
    for weight, wanted in weight_shapes(form).items():
        found = weights[weight]
        if found.shape != wanted:
            raise InputError(
                "tensor-shape-wrong",
                f"tensor {found.source} has the wrong shape",
                context=[f"it is {_by(found.shape)}; the model's metadata asks for {_by(wanted)} ({weight})"],
                hint="the file is damaged or was converted wrongly; convert it again",
            )
    return _Drawing(form, weights).model(name)


class _Drawing:
    """The graph while it is drawn: each method appends nodes and returns the value that goes on."""

    def __init__(self, form: Form, weights: Mapping[str, Weight]) -> None:
        self.form = form
        self.nodes: list[ir.Node] = []
        self.initializers: dict[str, ir.Value] = {}
        for name, weight in weights.items():
            tied = {TIED: EMBED} if name == HEAD and form.tied else {}
            self._initializer(name, weight.shape, weight.read, {BITS: str(weight.bits)} | tied)
        for name, wave in ((COS, np.cos), (SIN, np.sin)):
            shape = (form.context, form.head_size // 2)
            self._initializer(name, shape, _RotaryTable(form.inverse_frequencies, form.context, wave), {BITS: "32"})

    def model(self, name: str) -> ir.Model:
        form = self.form
        ids = _value("input_ids", ("batch", "sequence"), ir.DataType.INT64)
        positions = _value("position_ids", ("batch", "sequence"), ir.DataType.INT64)
        inputs, presents = [ids, positions], list[ir.Value]()
        hidden = self._node("Gather", "/embed", [self.initializers[EMBED], ids], form.hidden)
        for layer in range(form.layers):
            past = ("batch", form.kv_heads, "past", form.head_size)
            pasts = [_value(f"past_{half}.{layer}", past) for half in ("key", "value")]
            hidden, present = self._attention(layer, hidden, positions, pasts)
            hidden = self._mlp(layer, hidden)
            inputs += pasts
            presents += present
        hidden = self._norm("/final_norm", hidden)
        logits = self._linear("/head", hidden, output="logits")
        graph = ir.Graph(
            inputs,
            [logits, *presents],
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports={"": OPSET},
            name=name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="ruvcompile")

    def _attention(
        self, layer: int, hidden: ir.Value, positions: ir.Value, pasts: list[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value]]:
        form, at = self.form, f"/layers.{layer}/attn"
        normed = self._norm(f"/layers.{layer}/attn_norm", hidden)
        query, key, value = (self._linear(f"{at}/{part}_proj", normed) for part in "qkv")
        query = self._rotary(f"{at}/q_rope", query, positions, form.heads)
        key = self._rotary(f"{at}/k_rope", key, positions, form.kv_heads)
        total = ("batch", form.kv_heads, "total", form.head_size)
        presents = [_value(f"present_{half}.{layer}", total) for half in ("key", "value")]
        mixed = self._node(
            "Attention",
            f"{at}/attention",
            [query, key, value, None, *pasts],
            form.heads * form.head_size,
            {"is_causal": 1, "q_num_heads": form.heads, "kv_num_heads": form.kv_heads},
            more=presents,
        )
        return self._node("Add", f"{at}/add", [hidden, self._linear(f"{at}/o_proj", mixed)], form.hidden), presents

    def _mlp(self, layer: int, hidden: ir.Value) -> ir.Value:
        form, at = self.form, f"/layers.{layer}/mlp"
        normed = self._norm(f"/layers.{layer}/mlp_norm", hidden)
        gate = self._linear(f"{at}/gate_proj", normed)
        sigmoid = self._node("Sigmoid", f"{at}/sigmoid", [gate], form.ffn)
        silu = self._node("Mul", f"{at}/silu", [gate, sigmoid], form.ffn)
        gated = self._node("Mul", f"{at}/gated", [silu, self._linear(f"{at}/up_proj", normed)], form.ffn)
        return self._node("Add", f"{at}/add", [hidden, self._linear(f"{at}/down_proj", gated)], form.hidden)

    def _norm(self, name: str, hidden: ir.Value) -> ir.Value:
        scale = self.initializers[_weight_of(name)]
        attributes = {"axis": -1, "epsilon": self.form.epsilon, "stash_type": 1}
        return self._node("RMSNormalization", name, [hidden, scale], self.form.hidden, attributes)

    def _linear(self, name: str, value: ir.Value, output: str | None = None) -> ir.Value:
        weight = self.initializers[_weight_of(name)]
        assert weight.shape is not None
        return self._node("MatMul", name, [value, weight], int(weight.shape.numpy()[1]), output=output)

    def _rotary(self, name: str, value: ir.Value, positions: ir.Value, heads: int) -> ir.Value:
        inputs = [value, self.initializers[COS], self.initializers[SIN], positions]
        return self._node("RotaryEmbedding", name, inputs, heads * self.form.head_size, {"num_heads": heads})

    def _node(
        self,
        kind: str,
        name: str,
        inputs: list[ir.Value | None] | list[ir.Value],
        width: int,
        attributes: Mapping[str, int | float] | None = None,
        *,
        more: list[ir.Value] | None = None,
        output: str | None = None,
    ) -> ir.Value:
        result = _value(output or name.removeprefix("/"), ("batch", "sequence", width))
        self.nodes.append(
            ir.node(kind, inputs, attributes or {}, outputs=[result, *(more or [])], name=name),
        )
        return result

    def _initializer(
        self, name: str, shape: tuple[int, ...], read: Callable[[], Floats], metadata: dict[str, str]
    ) -> None:
        tensor = ir.LazyTensor(
            lambda: ir.Tensor(read(), name=name),
            dtype=ir.DataType.FLOAT,
            shape=ir.Shape(shape),
            name=name,
            metadata_props=dict(metadata),
        )
        value = _value(name, shape)
        value.const_value = tensor
        value.metadata_props.update(metadata)
        self.initializers[name] = value


@dataclass(frozen=True)
class _RotaryTable:
    """Cosine or sine of position times frequency, computed when it is asked for: ``[context, head_size / 2]``."""

    inverse_frequencies: tuple[float, ...]
    context: int
    wave: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

    def __call__(self) -> Floats:
        angles = np.outer(np.arange(self.context, dtype=np.float64), np.array(self.inverse_frequencies))
        return self.wave(angles).astype(np.float32)


def _value(name: str, shape: Dims, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
    return ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(shape))


def _weight_of(node: str) -> str:
    return node.removeprefix("/").replace("/", ".") + ".weight"


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
