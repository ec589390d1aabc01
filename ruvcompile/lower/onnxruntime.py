"""Lower a stage for ONNX Runtime: the canonical decoder form to the contrib operators its CPU kernels are fast at.

The canonical form is standard ONNX with explicit past and present. ONNX Runtime's kernels want more in one node,
and key/value buffers that are written in place. Rules, each applied wherever its pattern occurs:

1. ``RotaryEmbedding`` of query and key + ``Attention`` -> ``GroupQueryAttention`` with rotary inside; its past and
   present will be bound to one buffer. Positions come from ``seqlens_k``; ``position_ids`` is no longer needed.
2. The query, key and value projections of one attention, ``MatMulNBits`` of one input and equal bits -> one node
   with the weights stacked.
3. The gate and up projections of one MLP, likewise, and a ``Split``; ``x * Sigmoid(x)`` -> ``QuickGelu`` with alpha 1.
4. ``Add`` of the residual + ``RMSNormalization`` -> ``SkipSimplifiedLayerNormalization``, which yields both sum and
   norm. Its norm differs from ``RMSNormalization``'s in the last digits, so a stage that *begins* with such a norm
   uses the same kernel, with a zero residual: the same tokens wherever the cut is.
5. On the last stage, before the final norm: only the rows that will be sampled are gathered.

Nothing here looks at which stage a node is in, apart from rules 4 and 5: a piece of a model is lowered exactly as
it would be inside the whole, and its weights are the same bytes.

Any other graph is left as it is: ONNX Runtime optimises it when it is loaded, on the machine that runs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ruvcompile.passes.quantise import MS_DOMAIN

SEQLENS, TOTAL, ROWS = "seqlens_k", "total_sequence_length", "logit_rows"
FINAL_NORM = "/final_norm"
MODEL = "stage.onnx"


@dataclass(frozen=True)
class _Graph:
    """A graph under rewriting, with the few moves that every rule needs."""

    graph: ir.Graph

    def add(
        self,
        before: ir.Node,
        op_type: str,
        inputs: Sequence[ir.Value | None],
        names: Sequence[str],
        *,
        name: str,
        domain: str = MS_DOMAIN,
        attributes: Mapping[str, int | float] | None = None,
    ) -> list[ir.Value]:
        """Insert a node before another; its outputs are called ``names`` ("" for one that is left out)."""
        node = ir.node(
            op_type, inputs, attributes=dict(attributes or {}), domain=domain, name=name, num_outputs=len(names)
        )
        for value, called in zip(node.outputs, names, strict=True):
            value.name = called
        self.graph.insert_before(before, node)
        return list(node.outputs)

    def replace(self, old: ir.Value, new: ir.Value) -> None:
        """Let everything that reads ``old`` read ``new``, which takes over name and type."""
        new.name, new.shape, new.type = old.name, old.shape, old.type
        old.name = f"{old.name}.replaced"
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)

    def remove(self, *nodes: ir.Node | None) -> None:
        """Remove those nodes whose outputs nobody reads any more."""
        for node in nodes:
            unread = node is not None and not any(out.uses() or out.is_graph_output() for out in node.outputs)
            if node is not None and node.graph is self.graph and unread:
                self.graph.remove(node, safe=True)

    def constant(self, name: str, array: npt.NDArray[Any]) -> ir.Value:
        """A small initializer."""
        if name in self.graph.initializers:
            return self.graph.initializers[name]
        value = ir.Value(name=name, const_value=ir.Tensor(array, name=name))
        value.shape, value.type = ir.Shape(array.shape), ir.TensorType(ir.DataType.from_numpy(array.dtype))
        self.graph.register_initializer(value)
        return value


def summed_norms(model: ir.Model) -> frozenset[str]:
    """Names of the norms whose input is a sum of the residual stream, asked of the whole program (rule 4)."""
    norms = [node for node in model.graph if node.op_type == "RMSNormalization"]
    return frozenset(str(node.name) for node in norms if _made_by(node.inputs[0], "Add") is not None)


def lower_decoder(model: ir.Model, *, summed: frozenset[str], last: bool) -> ir.Model:
    """Rewrite an extracted decoder stage in place, and return it.

    Args:
        model: the stage, in canonical form.
        summed: ``summed_norms`` of the whole program.
        last: whether logits are made here.
    """
    edit = _Graph(model.graph)
    lengths = _input(model.graph, SEQLENS, ["batch"]), _input(model.graph, TOTAL, [1])
    for node in list(model.graph):
        if node.op_type == "Attention":
            _attention(edit, node, *lengths)
    for node in list(model.graph):
        if node.op_type == "Mul":
            _gate(edit, node)
    if last:
        _rows(edit)
    for node in list(model.graph):
        # The final norm comes after the gathering of rows, so it is a plain one, in every cut alike.
        if node.op_type == "RMSNormalization" and node.name in summed and node.name != FINAL_NORM:
            _norm(edit, node)
    _clean(model)
    model.graph.opset_imports[MS_DOMAIN] = 1
    return model


def _attention(edit: _Graph, node: ir.Node, seqlens: ir.Value, total: ir.Value) -> None:
    query_rope, key_rope = _made_by(node.inputs[0], "RotaryEmbedding"), _made_by(node.inputs[1], "RotaryEmbedding")
    assert query_rope is not None and key_rope is not None, f"{node.name} is not in canonical form"
    query, key, value = query_rope.inputs[0], key_rope.inputs[0], node.inputs[2]
    projections = [_made_by(each, "MatMulNBits") for each in (query, key, value)]
    packed = _stack(edit, projections, str(node.name).replace("/attention", "/qkv_proj"), before=node)
    if packed is not None:
        query, key, value = packed, None, None
    attributes: dict[str, int | float] = {
        "num_heads": node.attributes["q_num_heads"].as_int(),
        "kv_num_heads": node.attributes["kv_num_heads"].as_int(),
        "do_rotary": 1,
        "rotary_interleaved": _int(query_rope, "interleaved"),
    }
    if "scale" in node.attributes:
        attributes["scale"] = node.attributes["scale"].as_float()
    attention = edit.add(
        node,
        "GroupQueryAttention",
        [query, key, value, node.inputs[4], node.inputs[5], seqlens, total, query_rope.inputs[1], query_rope.inputs[2]],
        ["attended", "key", "value"],
        name=str(node.name),
        attributes=attributes,
    )
    for old, new in zip(node.outputs, attention, strict=False):
        edit.replace(old, new)
    edit.remove(node, query_rope, key_rope, *projections)


def _gate(edit: _Graph, node: ir.Node) -> None:
    """``(x * Sigmoid(x)) * y`` with x and y projections of one input (rule 3); ``node`` is the inner product."""
    sigmoid = _made_by(node.inputs[1], "Sigmoid")
    if sigmoid is None or sigmoid.inputs[0] is not node.inputs[0]:
        return
    outer = [use.node for use in node.outputs[0].uses()]
    gate = _made_by(node.inputs[0], "MatMulNBits")
    up = _made_by(outer[0].inputs[1], "MatMulNBits") if len(outer) == 1 and outer[0].op_type == "Mul" else None
    source = node.inputs[0]
    path = str(node.name).rsplit("/", 1)[0]
    stacked = _stack(edit, [gate, up], f"{path}/gate_up_proj", before=node)
    if stacked is not None and gate is not None and up is not None:
        sizes = [_int(gate, "N"), _int(up, "N")]
        split = edit.constant("gate_up_sizes." + "x".join(map(str, sizes)), np.array(sizes, np.int64))
        halves = [f"{path}/gate", f"{path}/up"]
        source, other = edit.add(
            node, "Split", [stacked, split], halves, name=f"{path}/split", domain="", attributes={"axis": -1}
        )
        outer[0].replace_input_with(1, other)
    (activated,) = edit.add(node, "QuickGelu", [source], ["activated"], name=str(node.name), attributes={"alpha": 1.0})
    edit.replace(node.outputs[0], activated)
    edit.remove(node, sigmoid, gate, up)


def _norm(edit: _Graph, node: ir.Node) -> None:
    source = node.inputs[0]
    assert source is not None
    add = _made_by(source, "Add")
    if add is not None:
        skipped, residual = add.inputs
    else:
        zero = f"{node.name}/zero"
        (residual,) = edit.add(node, "Sub", [source, source], [zero], name=zero, domain="")
        skipped = source
    normed, _, _, total = edit.add(
        node,
        "SkipSimplifiedLayerNormalization",
        [skipped, residual, node.inputs[1]],
        ["normed", "", "", f"{node.name}/sum"],
        name=str(node.name),
        attributes={"epsilon": node.attributes["epsilon"].as_float()},
    )
    edit.replace(node.outputs[0], normed)
    edit.remove(node)
    if add is not None:
        edit.replace(add.outputs[0], total)
        edit.remove(add)


def _rows(edit: _Graph) -> None:
    """Gather the wanted rows of ``[batch, sequence, hidden]`` before the final norm; logits are ``[rows, vocab]``."""
    norm = next(node for node in edit.graph if node.name == FINAL_NORM)
    # A norm's scale is a weight: its shape is known.
    hidden, width = norm.inputs[0], int(norm.inputs[1].shape[0])  # type: ignore[union-attr,index,arg-type]  # as said
    flat = edit.constant("flat_shape", np.array([-1, width], np.int64))
    (packed,) = edit.add(norm, "Reshape", [hidden, flat], ["final_norm/packed"], name="/final_norm/packed", domain="")
    rows = _input(edit.graph, ROWS, ["rows"], ir.DataType.INT64)
    made = ["final_norm/wanted"]
    (wanted,) = edit.add(norm, "Gather", [packed, rows], made, name="/final_norm/wanted", domain="")
    norm.replace_input_with(0, wanted)
    logits = edit.graph.outputs[0]
    assert logits.shape is not None
    logits.shape = ir.Shape(["rows", logits.shape[-1]])


def _stack(edit: _Graph, nodes: Sequence[ir.Node | None], name: str, before: ir.Node) -> ir.Value | None:
    """One ``MatMulNBits`` in place of several of the same input, bits and block; None where they are not alike."""
    first = nodes[0]
    if first is None or any(node is None or not _alike(first, node) for node in nodes):
        return None
    parts = [node for node in nodes if node is not None]
    columns = zip(*(node.inputs[1:] for node in parts), strict=True)
    suffixes = ("linear", "scales", "zeros")
    path = name.lstrip("/").replace("/", ".")
    inputs = [
        _concatenate(edit.graph, f"{path}.{suffix}", column) for suffix, column in zip(suffixes, columns, strict=False)
    ]
    sizes = {key: _int(first, key) for key in ("K", "bits", "block_size", "accuracy_level")}
    sizes["N"] = sum(_int(node, "N") for node in parts)
    operands = [first.inputs[0], *inputs]
    (out,) = edit.add(before, "MatMulNBits", operands, [name.lstrip("/")], name=name, attributes=sizes)
    return out


def _alike(first: ir.Node, other: ir.Node) -> bool:
    same = ("K", "bits", "block_size", "accuracy_level")
    return (
        other.inputs[0] is first.inputs[0]
        and len(other.inputs) == len(first.inputs)
        and all(_int(other, key) == _int(first, key) for key in same)
    )


def _concatenate(graph: ir.Graph, name: str, values: Sequence[ir.Value | None]) -> ir.Value:
    """The lazy concatenation of initializers along their first axis."""
    tensors = [value.const_value for value in values if value is not None]
    shapes = [tuple(int(size) for size in tensor.shape) for tensor in tensors if tensor is not None]  # type: ignore[arg-type]  # static
    shape = ir.Shape((sum(each[0] for each in shapes), *shapes[0][1:]))
    dtype = tensors[0].dtype  # type: ignore[union-attr]  # as above

    def read() -> ir.TensorProtocol:
        return ir.Tensor(np.concatenate([tensor.numpy() for tensor in tensors if tensor is not None]), name=name)

    value = ir.Value(name=name, shape=shape, type=ir.TensorType(dtype))
    value.const_value = ir.LazyTensor(read, dtype=dtype, shape=shape, name=name)
    graph.register_initializer(value)
    return value


def _input(graph: ir.Graph, name: str, shape: Sequence[int | str], dtype: ir.DataType = ir.DataType.INT32) -> ir.Value:
    value = ir.Value(name=name, shape=ir.Shape(shape), type=ir.TensorType(dtype))
    graph.inputs.append(value)
    return value


def _clean(model: ir.Model) -> None:
    """Drop what the rules left over: initializers and the ``position_ids`` input that nobody reads."""
    graph = model.graph
    for name in [name for name, value in graph.initializers.items() if not value.uses()]:
        del graph.initializers[name]
    for value in [value for value in graph.inputs if value.name == "position_ids" and not value.uses()]:
        graph.inputs.remove(value)


def _made_by(value: ir.Value | None, op_type: str) -> ir.Node | None:
    producer = value.producer() if value is not None else None
    return producer if producer is not None and producer.op_type == op_type else None


def _int(node: ir.Node, name: str) -> int:
    attribute = node.attributes.get(name)
    return attribute.as_int() if attribute is not None else 0
