"""A stage as files for ONNX Runtime: an ONNX graph and its weights as external data.

A decoder in canonical form gets the operators that the kernels are fast at; one that is run as it was exported, and
any other graph, stays as it is, but for half floats at its ends.
"""

from __future__ import annotations

from ruvcompile.lower import onnxruntime
from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.files import by_rows, decoder_groups, graph_groups, ports, state_pairs, write_model
from ruvcompile.lower.halves import widen
from ruvcompile.lower.sheet import sheet_of


def write(draft: Draft) -> Written:
    """Lower a stage and write its files."""
    program, piece, model = draft.program, draft.piece, draft.model
    decoder = program.decoder
    summed = onnxruntime.summed_norms(program.model)
    if not draft.canonical:
        widen(model, program.model)
    inputs = ports(model.graph.inputs, piece.inputs, packed=decoder is not None)
    outputs = ports(model.graph.outputs, piece.outputs, packed=decoder is not None)
    state = [] if decoder is None or draft.canonical else state_pairs(model.graph, draft.past, draft.present)
    if draft.canonical:
        model = onnxruntime.lower_decoder(model, summed=summed, last=piece.last)
    if decoder is not None:
        outputs = [by_rows(tensor) if tensor.name == "logits" else tensor for tensor in outputs]
    sheet = sheet_of(program, model, draft.keyed) if draft.keyed is not None else None
    groups = graph_groups if decoder is None else decoder_groups
    files = write_model(model, onnxruntime.MODEL, draft.directory, draft.store, groups, passing=draft.passing)
    half = any(pair.dtype == "float16" for pair in state)
    return Written(onnxruntime.MODEL, inputs, outputs, files, sheet, "float16" if half else "float32", state)
