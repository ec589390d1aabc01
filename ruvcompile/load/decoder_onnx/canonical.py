"""An exported decoder in canonical form, where every layer of it is of a pattern that is known.

The graph is rewritten in place, piece by piece, and what is not known to be otherwise stays as it was: a decoder with
other norms, activations or ways of adding up than any family's has the canonical attention, state and rotary tables
all the same, and with them everything that the back ends do with these. In order:

1. norms, linear layers and reshapes become the nodes they are (``norms``), sizes are settled (``shapes``);
2. the attention of every layer becomes one node with past and present (``attention``);
3. masks, repeated heads and the arithmetic of shapes fall away, and with them every input but tokens, positions, state;
4. parts get their names (``blocks``), the norm before the head the one that the lowering knows it by.

Nothing is believed: at the end both graphs are run on the same tokens and state, a long context among them, and must
agree. Where anything is not clear, the answer is why, and the graph is run as it was exported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.load.checkpoint import IR_VERSION, OPSET, WINDOW_OPSET
from ruvcompile.load.decoder_onnx.attention import Attentions
from ruvcompile.load.decoder_onnx.blocks import name_blocks
from ruvcompile.load.decoder_onnx.look import Unclear, drop_unread, fold_constants, local_values, merge_equal
from ruvcompile.load.decoder_onnx.norms import plain_linear, plain_norms, plain_reshapes, turned_weights
from ruvcompile.load.decoder_onnx.runs import Dims, Seen, size_of, watch
from ruvcompile.load.decoder_onnx.shapes import describe, settle_shapes
from ruvcompile.lower.onnxruntime import FINAL_NORM
from ruvcompile.lower.onnxruntime.attention import HEAD_MULTIPLE
from ruvcompile.passes.levels import BLOCK
from ruvcompile.passes.state import FILLED, POSITIONS, Ports, find_ports

# What kernels that add up in another order may differ by, as a share of the norm; and with activations in 8 bits.
FLOAT_SHARE, ROUNDED_SHARE = 1e-4, 5e-2
_NORMS = ("RMSNormalization", "LayerNormalization")
_BEFORE_LOGITS = ("MatMul", "MatMulNBits", "Add", "Mul", "Div", "Tanh", "Cast", "Gemm")
# accuracy_level of quantised products whose result does not depend on how many rows are computed at once.
_STEADY = (1, 4)


def canonical(model: ir.Model, seen: Seen, *, vocab: int, context: int) -> tuple[ir.Model, int]:
    """``model`` in canonical form, and the width of what is sent over a cut.

    Args:
        model: a decoder with canonical names of inputs and outputs; not changed.
        seen: what runs of it have shown of the values that ``shapes.asked`` names.
        vocab: tokens in the vocabulary.
        context: positions there are.

    Raises:
        Unclear: it cannot be brought into that form.
    """
    made = model.clone()
    ports = _ports(made)
    _check_kinds(made, ports)
    try:
        settle_shapes(made, seen)
        fold_constants(made, context)
        merge_equal(made.graph)
        plain_norms(made.graph, {name for name, kind in seen.kinds.items() if kind == np.float32})
        turned_weights(made.graph)
        dims = {name: found for name in seen.shapes if (found := seen.dims(name)) is not None}
        plain_reshapes(made.graph, dims)
        made.graph.opset_imports[""] = max(made.graph.opset_imports[""], OPSET)
        made.ir_version = max(made.ir_version, IR_VERSION)
        _rewrite_attention(made, ports, dims, context)
        made.graph.sort()
        _only_positions(made)
        ports = _ports(made)
        every = [str(value.name) for node in made.graph for value in node.outputs if value.name]
        again = watch(made, ports, every, seen.sizes, vocab)
        _compare(made, seen, again)
        describe(made, again)
        width = name_blocks(made, ports, again)
        _name_parts(made, ports)
    except InputError as error:
        raise Unclear(f"{error.message}: {' '.join(error.context)}") from None
    return made, width


def _ports(model: ir.Model) -> Ports:
    ports = find_ports(model)
    assert ports is not None, "it was one before"
    return replace(ports, filled=tuple(value for value in model.graph.inputs if value.name in FILLED))


def _check_kinds(model: ir.Model, ports: Ports) -> None:
    if any(pair.past.dtype != ir.DataType.FLOAT for pair in ports.pairs):
        raise Unclear("its state is not float32")
    if size_of(ports.pairs[0].past) % HEAD_MULTIPLE:
        raise Unclear(f"heads of {size_of(ports.pairs[0].past)} are no multiple of {HEAD_MULTIPLE}")
    for node in model.graph:
        if node.op_type == "MatMulNBits":
            known = {name: attribute.value for name, attribute in node.attributes.items()}
            if known["block_size"] != BLOCK or known.get("accuracy_level", 0) not in _STEADY:
                raise Unclear(f"{node.name} gives other digits for several rows at once")


def _rewrite_attention(model: ir.Model, ports: Ports, dims: Mapping[str, Dims], context: int) -> None:
    attentions = Attentions(model, local_values(model.graph), dims, context)
    pairs = {(pair.layer, pair.half): pair for pair in ports.pairs}
    layers = [(attentions.find(pairs[number, "key"], pairs[number, "value"]), number) for number in range(ports.layers)]
    size = size_of(ports.pairs[0].past)
    known = {str(layer.result.name): ("batch", "sequence", layer.heads * size) for layer, _ in layers}
    for layer, number in layers:
        attentions.rewrite(layer, pairs[number, "key"], pairs[number, "value"])
    drop_unread(model.graph)
    plain_linear(model.graph, {**dims, **known})
    if any(layer.window for layer, _ in layers):
        model.graph.opset_imports[""] = max(model.graph.opset_imports[""], WINDOW_OPSET)


def _only_positions(model: ir.Model) -> None:
    for value in list(model.graph.inputs):
        if value.name in FILLED and not value.uses() and value.name != POSITIONS:
            model.graph.inputs.remove(value)
        elif value.name in FILLED and value.name != POSITIONS:
            raise Unclear(f"{value.name} decides more than what attention sees")


def _name_parts(model: ir.Model, ports: Ports) -> None:
    """Rule 4: attention and rotary nodes, and the last norm."""
    attentions = [node for node in model.graph if node.op_type == "Attention"]
    for node in model.graph:
        if node.op_type in ("Attention", "RotaryEmbedding") and node.domain:
            raise Unclear(f"{node.name} is not the standard's {node.op_type}")
    if len({str(node.name).split("/")[1] for node in attentions}) != ports.layers:
        raise Unclear("its layers cannot be told apart")
    norm = ports.logits.producer()
    while norm is not None and norm.op_type in _BEFORE_LOGITS:
        before = norm.inputs[0]
        norm = before.producer() if before is not None else None
    if norm is None or norm.op_type not in _NORMS or not str(norm.name).startswith("/head/"):
        raise Unclear("there is no norm before the head")
    norm.name = FINAL_NORM


def _compare(made: ir.Model, before: Seen, after: Seen) -> None:
    """Both graphs, on the same inputs: the logits and what is new of the state."""
    quantised = any(node.op_type == "MatMulNBits" for node in made.graph)
    bound = ROUNDED_SHARE if quantised else FLOAT_SHARE
    for value in made.graph.outputs:
        name = str(value.name)
        for wanted, found in zip(before.contents[name], after.contents[name], strict=True):
            difference = float(np.linalg.norm((found - wanted).astype(np.float64)))
            if not difference <= bound * max(float(np.linalg.norm(wanted.astype(np.float64))), 1e-6):
                raise Unclear(f"{name} is another in the rewritten graph")


__all__ = ["Unclear", "canonical"]
