"""The gated part of an MLP: gate and up projection as one, and its activation as one kernel."""

from __future__ import annotations

import onnx_ir as ir

from ruvcompile.lower.edit import Edit, integer
from ruvcompile.lower.projections import stack
from ruvcompile.passes.edit import made_by, replace_value


def gate(edit: Edit, node: ir.Node) -> None:
    """Rewrite ``activation(x) * y`` with x and y projections of one input (rule 4).

    ``node`` is what yields ``activation(x)``: the product in ``x * Sigmoid(x)``, or a ``Gelu``.
    """
    sigmoid = made_by(node.inputs[1], "Sigmoid") if node.op_type == "Mul" else None
    if node.op_type == "Mul" and (sigmoid is None or sigmoid.inputs[0] is not node.inputs[0]):
        return
    outer = [use.node for use in node.outputs[0].uses()]
    source = node.inputs[0]
    gate, up = made_by(source, "MatMulNBits"), None
    if len(outer) == 1 and outer[0].op_type == "Mul":
        up = made_by(outer[0].inputs[1], "MatMulNBits")
    path = str(node.name).rsplit("/", 1)[0]
    stacked = stack(edit, [gate, up], f"{path}/gate_up_proj", before=node)
    if stacked is not None and gate is not None and up is not None:
        widths = [integer(gate, "N"), integer(up, "N")]
        source, other = edit.split(
            node, stacked, widths, [f"{path}/gate", f"{path}/up"], name=f"{path}/split", kind="gate_up"
        )
        outer[0].replace_input_with(1, other)
    if sigmoid is not None:
        (active,) = edit.add(node, "QuickGelu", [source], ["activated"], name=str(node.name), attributes={"alpha": 1.0})
        replace_value(node.outputs[0], active)
    else:
        node.replace_input_with(0, source)
    edit.remove(node, sigmoid, gate, up)
