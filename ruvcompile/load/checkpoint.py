"""The canonical form of a decoder, and the one place that builds it.

Every decoder checkpoint becomes the same graph, whatever file it came from. A family module (``families``) only
describes the model (``Form``) and names its weights (``Weight``); the graph is drawn here, once, so that every pass,
lowering and test knows exactly one shape of decoder. It is standard ONNX, nothing else, and ONNX Runtime runs it as
it is. What stands in brackets is there where the form says so::

    input_ids ─ Gather(embed) [─ Mul]
     ├─ RMSNormalization ─┬─ MatMul q [─ Add] [─ norm by head] [─ RotaryEmbedding] ─┐
     │                    ├─ MatMul k [─ Add] [─ norm by head] [─ RotaryEmbedding] ─┤
     │                    └─ MatMul v [─ Add] ──────────────────────────────────────┼─ Attention ─ MatMul o ─┐
     │                                                 past_key.i, past_value.i ────┘    └─ present_*.i      │
     └─ Add ◄────────────────────────────────────────────────────────────── [RMSNormalization] ◄─ [Add] ◄────┘
         ├─ RMSNormalization ─┬─ MatMul gate [─ Add] ─ SiLU or Gelu ─ Mul ─ MatMul down [─ Add] ─┐
         └─ Add ◄──┐          └─ MatMul up [─ Add] ───────────────────┘                          │
                   └───────────────────────────────────────────────────── [RMSNormalization] ◄───┘
    ... more layers ...  ─ RMSNormalization ─ MatMul(head) [─ Div ─ Tanh ─ Mul] ─ logits

Choices that the rest of the compiler relies on:

1. *Activations stay ``[batch, sequence, width]``*; heads are told to ``RotaryEmbedding`` and ``Attention`` by
   attribute. No transpose, no shape arithmetic, and a reshape only around a norm by head: a cut anywhere is a cut of
   plain tensors.
2. *State is explicit.* ``past_key.i`` goes in, ``present_key.i`` comes out, per layer; ``Attention`` appends the new
   keys and masks causally behind them. Back ends turn the pair into their own cache.
3. *A sliding window is an attribute*, ``left_window_size`` (positions before a token that it sees, so one less than
   the window). The standard has it since opset 25; a graph without windows stays at opset 23.
4. *Rotary embedding is the half-split form* with tables ``rotary.cos`` and ``rotary.sin`` ``[context, pairs]`` that
   all layers share and any stage can hold; frequency scaling of the model is inside the tables. A model with
   several bases has several tables.
5. *A linear weight is ``[in, out]``*, as ``MatMul`` wants it; the embedding is ``[vocab, hidden]``. Where the model
   ties them, ``head.weight`` is an initializer of its own, the transpose of the same stored tensor, and its metadata
   ``ruv.tied`` names ``embed.weight``: a stage that holds one end only is complete, and a pass that quantises them
   can do it once.
6. *Weights are lazy*: ``const_value.numpy()`` decodes the stored tensor, and nothing keeps the result. Shapes and
   ``ruv.bits`` (bits per weight in the file) are known without reading.
7. *Names are addresses.* A node is ``/layers.3/attn/q_proj``; its output value is the same without the leading slash;
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
from ruvcompile.load.form import EMBED, HEAD, Form, Layer, Rotary, Weight, weight_shapes
from ruvcompile.load.pen import Pen, address_of, value_of
from ruvcompile.matrices import Floats
from ruvcompile.program import BITS, TIED, Decoder

OPSET, WINDOW_OPSET = 23, 25
IR_VERSION = 11

# Of a rotary table, at a time: in float64 a whole one of a long context would be the largest thing in memory.
_ROWS = 4096


def build_decoder(form: Form, weights: Mapping[str, Weight], name: str) -> ir.Model:
    """Draw the canonical graph of ``form`` over ``weights`` (one for each of ``weight_shapes``).

    Raises:
        InputError: a weight does not have the shape that the form asks for.
    """
    for weight, wanted in weight_shapes(form).items():
        found = weights[weight]
        if found.shape != wanted:
            # Told as it lies in the file, where its user can look it up.
            turned = -1 if weight != EMBED else 1
            raise InputError(
                "tensor-shape-wrong",
                f"tensor {found.source} has the wrong shape",
                context=[f"it is {_by(found.shape[::turned])}; the model's metadata asks for {_by(wanted[::turned])}"],
                hint="the file is damaged or was converted wrongly; convert it again",
            )
    return _Drawing(form, weights).model(name)


def decoder_of(form: Form, architecture: str, eos: tuple[int, ...]) -> Decoder:
    """What a program tells of a decoder of this form."""
    return Decoder(
        architecture=architecture,
        layers=len(form.layers),
        hidden=form.hidden,
        heads=form.heads,
        kv_heads=form.kv_heads,
        head_size=form.head_size,
        vocab=form.vocab,
        context=form.context,
        eos=eos,
    )


class _Drawing(Pen):
    """A decoder while it is drawn: each method draws a part of it and returns the value that goes on."""

    def __init__(self, form: Form, weights: Mapping[str, Weight]) -> None:
        super().__init__()
        self.form = form
        for name, weight in weights.items():
            tied = {TIED: EMBED} if name == HEAD and form.tied else {}
            self.weight(name, weight.shape, weight.read, {BITS: str(weight.bits)} | tied, weight.rows)
        for table, rotary in form.rotaries.items():
            for half, wave in (("cos", np.cos), ("sin", np.sin)):
                shape = (form.context, len(rotary.frequencies))
                self.weight(f"{table}.{half}", shape, _Table(rotary, form.context, wave), {BITS: "32"})

    def model(self, name: str) -> ir.Model:
        form = self.form
        ids = value_of("input_ids", ("batch", "sequence"), ir.DataType.INT64)
        positions = value_of("position_ids", ("batch", "sequence"), ir.DataType.INT64)
        inputs, presents = [ids, positions], list[ir.Value]()
        hidden = self.node("Gather", "/embed", [self.initializers[EMBED], ids], form.hidden)
        if form.embedding_scale != 1:
            scale = self.constant("embed.scale", np.float32(form.embedding_scale))
            hidden = self.node("Mul", "/embed/scaled", [hidden, scale], form.hidden)
        for number, layer in enumerate(form.layers):
            past = ("batch", form.kv_heads, "past", form.head_size)
            pasts = [value_of(f"past_{half}.{number}", past) for half in ("key", "value")]
            hidden, present = self._attention(number, layer, hidden, positions, pasts)
            hidden = self._mlp(number, hidden)
            inputs += pasts
            presents += present
        logits = self._head(self._norm("/final_norm", hidden))
        windows = any(layer.window for layer in form.layers)
        graph = ir.Graph(
            inputs,
            [logits, *presents],
            nodes=self.nodes,
            initializers=list(self.initializers.values()),
            opset_imports={"": WINDOW_OPSET if windows else OPSET},
            name=name,
        )
        return ir.Model(graph, ir_version=IR_VERSION, producer_name="ruvcompile")

    def _attention(
        self, number: int, layer: Layer, hidden: ir.Value, positions: ir.Value, pasts: list[ir.Value]
    ) -> tuple[ir.Value, list[ir.Value]]:
        form, at = self.form, f"/layers.{number}/attn"
        normed = self._norm(f"/layers.{number}/attn_norm", hidden)
        query, key, value = (self._linear(f"{at}/{part}_proj", normed) for part in "qkv")
        if form.qk_norm:
            query, key = self._by_head(at, "q", query, form.heads), self._by_head(at, "k", key, form.kv_heads)
        if layer.rotary is not None:
            query = self._rotary(f"{at}/q_rope", layer.rotary, query, positions, form.heads)
            key = self._rotary(f"{at}/k_rope", layer.rotary, key, positions, form.kv_heads)
        attributes: dict[str, int | float] = {
            "is_causal": 1,
            "q_num_heads": form.heads,
            "kv_num_heads": form.kv_heads,
        }
        if form.scale is not None:
            attributes["scale"] = form.scale
        if form.attention_cap:
            attributes["softcap"] = form.attention_cap
        if layer.window:
            attributes["left_window_size"] = layer.window - 1
        total = ("batch", form.kv_heads, "total", form.head_size)
        presents = [value_of(f"present_{half}.{number}", total) for half in ("key", "value")]
        operands, width = [query, key, value, None, *pasts], form.heads * form.head_size
        mixed = self.node("Attention", f"{at}/attention", operands, width, attributes=attributes, more=presents)
        return self._residual(at, hidden, self._linear(f"{at}/o_proj", mixed)), presents

    def _by_head(self, at: str, part: str, value: ir.Value, heads: int) -> ir.Value:
        """Norm each head of ``[batch, sequence, heads * head_size]`` by itself."""
        size = self.form.head_size
        apart = self.constant(f"heads.{heads}x{size}", np.array([0, 0, heads, size], np.int64))
        together = self.constant(f"heads.{heads * size}", np.array([0, 0, heads * size], np.int64))
        split = self.node("Reshape", f"{at}/{part}_heads", [value, apart], heads, size)
        normed = self._norm(f"{at}/{part}_norm", split)
        return self.node("Reshape", f"{at}/{part}_normed", [normed, together], heads * size)

    def _mlp(self, number: int, hidden: ir.Value) -> ir.Value:
        form, at = self.form, f"/layers.{number}/mlp"
        normed = self._norm(f"/layers.{number}/mlp_norm", hidden)
        gate = self._linear(f"{at}/gate_proj", normed)
        if form.activation == "silu":
            sigmoid = self.node("Sigmoid", f"{at}/sigmoid", [gate], form.ffn)
            active = self.node("Mul", f"{at}/silu", [gate, sigmoid], form.ffn)
        else:
            attributes = {"approximate": "tanh" if form.activation == "gelu_tanh" else "none"}
            active = self.node("Gelu", f"{at}/gelu", [gate], form.ffn, attributes=attributes)
        gated = self.node("Mul", f"{at}/gated", [active, self._linear(f"{at}/up_proj", normed)], form.ffn)
        return self._residual(at, hidden, self._linear(f"{at}/down_proj", gated))

    def _residual(self, at: str, hidden: ir.Value, change: ir.Value) -> ir.Value:
        if self.form.post_norms:
            change = self._norm(f"{at}/post_norm", change)
        return self.node("Add", f"{at}/add", [hidden, change], self.form.hidden)

    def _head(self, hidden: ir.Value) -> ir.Value:
        form = self.form
        if not form.logit_cap:
            return self._linear("/head", hidden, output="logits")
        logits, cap = self._linear("/head", hidden), self.constant("head.cap", np.float32(form.logit_cap))
        small = self.node("Div", "/head/small", [logits, cap], form.vocab)
        bounded = self.node("Tanh", "/head/bounded", [small], form.vocab)
        return self.node("Mul", "/head/capped", [bounded, cap], form.vocab, output="logits")

    def _norm(self, name: str, value: ir.Value) -> ir.Value:
        scale = self.initializers[address_of(name) + ".weight"]
        assert value.shape is not None
        attributes = {"axis": -1, "epsilon": self.form.epsilon, "stash_type": 1}
        widths = [int(size) for size in value.shape[2:]]  # type: ignore[arg-type]  # only batch and sequence are open
        return self.node("RMSNormalization", name, [value, scale], *widths, attributes=attributes)

    def _linear(self, name: str, value: ir.Value, output: str | None = None) -> ir.Value:
        address = address_of(name)
        weight, bias = self.initializers[f"{address}.weight"], self.initializers.get(f"{address}.bias")
        assert weight.shape is not None
        width = int(weight.shape.numpy()[1])
        result = self.node("MatMul", name, [value, weight], width, output=output)
        return result if bias is None else self.node("Add", f"{name}/biased", [result, bias], width)

    def _rotary(self, name: str, table: str, value: ir.Value, positions: ir.Value, heads: int) -> ir.Value:
        inputs = [value, self.initializers[f"{table}.cos"], self.initializers[f"{table}.sin"], positions]
        attributes = {"num_heads": heads}
        rotated = 2 * len(self.form.rotaries[table].frequencies)
        if rotated < self.form.head_size:
            attributes["rotary_embedding_dim"] = rotated
        return self.node("RotaryEmbedding", name, inputs, heads * self.form.head_size, attributes=attributes)


@dataclass(frozen=True)
class _Table:
    """Cosine or sine of position times frequency, computed when it is asked for: ``[context, pairs]``."""

    rotary: Rotary
    context: int
    wave: Callable[[npt.NDArray[np.float64]], npt.NDArray[np.float64]]

    def __call__(self) -> Floats:
        frequencies = np.array(self.rotary.frequencies, np.float64)
        table = np.empty((self.context, len(frequencies)), np.float32)
        for start in range(0, self.context, _ROWS):
            angles = np.outer(np.arange(start, min(start + _ROWS, self.context), dtype=np.float64), frequencies)
            table[start : start + _ROWS] = self.wave(angles) * self.rotary.gain
        return table


def _by(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "a single number"
