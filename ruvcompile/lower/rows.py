"""Logits only for the rows that are sampled: the rest of the hidden state goes no further than the last layer."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ruvcompile.lower.edit import Edit
from ruvcompile.passes.edit import constant

FINAL_NORM = "/final_norm"
ROWS = "logit_rows"


def gather_rows(edit: Edit) -> None:
    """Gather the wanted rows of ``[batch, sequence, hidden]`` before the final norm; what follows is ``[rows, n]``."""
    norm = next(node for node in edit.graph if node.name == FINAL_NORM)
    # A norm's scale is a weight: its shape is known.
    hidden, width = norm.inputs[0], int(norm.inputs[1].shape[0])  # type: ignore[union-attr,index,arg-type]  # as said
    flat = constant(edit.graph, "flat_shape", np.array([-1, width], np.int64))
    (packed,) = edit.add(norm, "Reshape", [hidden, flat], ["final_norm/packed"], name="/final_norm/packed", domain="")
    rows = edit.input(ROWS, ["rows"], ir.DataType.INT64)
    made = ["final_norm/wanted"]
    (wanted,) = edit.add(norm, "Gather", [packed, rows], made, name="/final_norm/wanted", domain="")
    norm.replace_input_with(0, wanted)
    for node in list(edit.graph)[list(edit.graph).index(norm) :]:
        for value in node.outputs:
            assert value.shape is not None
            value.shape = ir.Shape(["rows", value.shape[-1]])
