"""Lower a stage for the reference: the canonical form of a decoder as it is, its state in plain tensors.

No bundle is made for it. ``verify`` runs the uncut model there, to see how far unlike back ends are from what the
weights mean.
"""

from __future__ import annotations

from ruvcompile.errors import InputError
from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.files import by_rows, decoder_groups, ports, state_pairs, write_model

MODEL = "stage.onnx"


def write(draft: Draft) -> Written:
    """Write the files of a stage.

    Raises:
        InputError: it is of no decoder in canonical form.
    """
    if not draft.canonical:
        what = f"{draft.program.name} is no decoder in canonical form, and only such a one runs on the reference"
        raise InputError("reference-unsupported", what, hint="build for another back end")
    model, piece = draft.model, draft.piece
    inputs = ports(model.graph.inputs, piece.inputs, packed=True)
    outputs = ports(model.graph.outputs, piece.outputs, packed=True)
    outputs = [by_rows(tensor) if tensor.name == "logits" else tensor for tensor in outputs]
    state = state_pairs(model.graph, draft.past, draft.present)
    files = write_model(model, MODEL, draft.directory, draft.store, decoder_groups, passing=draft.passing)
    return Written(MODEL, inputs, outputs, files, None, state=state)
