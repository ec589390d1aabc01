"""Lower a stage for ONNX Runtime: the canonical decoder form to the contrib operators its CPU kernels are fast at.

The canonical form is standard ONNX with explicit past and present. ONNX Runtime's kernels want more in one node,
and key/value buffers that are written in place. Rules, each applied wherever its pattern occurs:

1. ``Add`` of a bias to a ``MatMulNBits`` -> its own bias (``projections``).
2. ``RotaryEmbedding`` of query and key (or none) + ``Attention`` -> ``GroupQueryAttention`` with rotary, window, scale
   and cap inside; its past and present will be bound to one buffer. Positions come from ``seqlens_k``; ``position_ids``
   is no longer needed (``attention``).
3. The query, key and value projections of one attention, ``MatMulNBits`` of one input and equal bits -> one node
   with the weights stacked; and a ``Split``, where queries and keys are normed head by head before they go on.
4. The gate and up projections of one MLP, likewise, and a ``Split``; ``x * Sigmoid(x)`` -> ``QuickGelu`` with alpha 1
   (``mlp``).
5. ``Add`` of the residual + ``RMSNormalization`` -> ``SkipSimplifiedLayerNormalization``, which yields both sum and
   norm. Its norm differs from ``RMSNormalization``'s in the last digits, so a stage that *begins* with such a norm
   uses the same kernel, with a zero residual: the same tokens wherever the cut is.
6. On the last stage, before the final norm: only the rows that will be sampled are gathered.

Nothing here looks at which stage a node is in, apart from rules 5 and 6: a piece of a model is lowered exactly as
it would be inside the whole, and its weights are the same bytes.

Any other graph is left as it is: ONNX Runtime optimises it when it is loaded, on the machine that runs it.
"""

from __future__ import annotations

import onnx_ir as ir

from ruvcompile.lower.edit import Edit
from ruvcompile.lower.onnxruntime.attention import attend
from ruvcompile.lower.onnxruntime.mlp import gate
from ruvcompile.lower.projections import bias_inside
from ruvcompile.lower.rows import FINAL_NORM, ROWS, gather_rows
from ruvcompile.passes.edit import made_by, replace_value
from ruvcompile.passes.quantise import MS_DOMAIN

SEQLENS, TOTAL = "seqlens_k", "total_sequence_length"
MODEL = "stage.onnx"


def summed_norms(model: ir.Model) -> frozenset[str]:
    """Names of the norms whose input is a sum of the residual stream, asked of the whole program (rule 5)."""
    norms = [node for node in model.graph if node.op_type == "RMSNormalization"]
    return frozenset(str(node.name) for node in norms if _sum(node.inputs[0]) is not None)


def lower_decoder(model: ir.Model, *, summed: frozenset[str], last: bool) -> ir.Model:
    """Rewrite an extracted decoder stage in place, and return it.

    Args:
        model: the stage, in canonical form.
        summed: ``summed_norms`` of the whole program.
        last: whether logits are made here.
    """
    edit = Edit(model.graph)
    lengths = edit.input(SEQLENS, ["batch"]), edit.input(TOTAL, [1])
    for kinds, rule in (
        (("Add",), bias_inside),
        (("Attention",), lambda edit, node: attend(edit, node, *lengths)),
        (("Mul", "Gelu"), gate),
    ):
        for node in list(model.graph):
            if node.op_type in kinds:
                rule(edit, node)
    if last:
        gather_rows(edit)
    for node in list(model.graph):
        # The final norm comes after the gathering of rows, so it is a plain one, in every cut alike.
        if node.op_type == "RMSNormalization" and node.name in summed and node.name != FINAL_NORM:
            _norm(edit, node)
    _clean(model)
    model.graph.opset_imports[MS_DOMAIN] = 1
    return model


def _sum(value: ir.Value | None) -> ir.Node | None:
    """The ``Add`` of two activations that makes ``value``; a bias is another matter."""
    add = made_by(value, "Add")
    return None if add is None or any(each is None or each.is_initializer() for each in add.inputs) else add


def _norm(edit: Edit, node: ir.Node) -> None:
    source = node.inputs[0]
    assert source is not None
    add = _sum(source)
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
    replace_value(node.outputs[0], normed)
    edit.remove(node)
    if add is not None:
        replace_value(add.outputs[0], total)
        edit.remove(add)


def _clean(model: ir.Model) -> None:
    """Drop what the rules left over: initializers and the ``position_ids`` input that nobody reads."""
    graph = model.graph
    Edit(graph).drop_unread()
    for value in [value for value in graph.inputs if value.name == "position_ids" and not value.uses()]:
        graph.inputs.remove(value)


__all__ = ["FINAL_NORM", "MODEL", "ROWS", "SEQLENS", "TOTAL", "lower_decoder", "summed_norms"]
