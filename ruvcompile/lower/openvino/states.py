"""The state of a decoder stage as paged attention wants to find it: variables that can be empty, in an order of beams.

The pass that makes attention paged looks for ``Concat(Gather(ReadValue(initial), beam_idx), new)`` before the keys and
values of each ``ScaledDotProductAttention``, and for a ``Broadcast`` where heads are repeated. A graph that was read
from ONNX has inputs and outputs in place of the one and a ``Tile`` in place of the other. Where the pattern is not met
the pass converts nothing, or fails much later.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import op, opset13

from ruvcompile.lower.draft import Draft
from ruvrun.executors.openvino.cpu.attention import batch_of, past_state
from ruvrun.executors.openvino.ports import BEAMS, EMBEDDED, IDS


def make_stateful(model: Any, draft: Draft) -> None:
    """Turn the past, inputs ``[batch, heads, past, head_size]``, and the present of a stage into variables.

    Args:
        model: an ``openvino.Model``; changed.
        draft: the stage that it is.
    """
    decoder, past = draft.program.decoder, draft.past
    assert decoder is not None
    heads, head_size = decoder.kv_heads, decoder.head_size
    source = IDS if draft.piece.first else EMBEDDED
    inputs = {parameter.output(0).get_any_name(): parameter for parameter in model.get_parameters()}
    results = {name: result for result in model.get_results() for name in result.input_value(0).get_names()}
    batch = batch_of(inputs[source])
    beams = opset13.parameter([-1], np.int32, name=BEAMS)
    beams.output(0).set_names({BEAMS})
    sinks = []
    for name in past:
        parameter, result = inputs[name], results[name.replace("past_", "present_", 1)]
        ordered, variable = past_state(name, batch, beams, heads, head_size)
        for reader in parameter.output(0).get_target_inputs():
            reader.replace_source_output(ordered.output(0))
        sinks.append(op.assign(result.input_value(0).get_node(), variable))
        model.remove_result(result)
    model.add_parameters([beams])
    model.add_sinks(sinks)
    for name in past:
        model.remove_parameter(inputs[name])
    _repeat_by_broadcast(model)
    without_checks(model)
    model.validate_nodes_and_infer_types()


def _repeat_by_broadcast(model: Any) -> None:
    """``Tile`` of key/value heads -> ``Broadcast``; nothing else in a decoder is tiled."""
    for tile in model.get_ops():
        if tile.get_type_name() == "Tile":
            wide = opset13.broadcast(tile.input_value(0), tile.input_value(1), broadcast_spec="BIDIRECTIONAL")
            for reader in tile.output(0).get_target_inputs():
                reader.replace_source_output(wide.output(0))


def without_checks(model: Any) -> None:
    """Take away what makes zeros of a row of attention that sees nothing: a token always sees itself."""
    for select in model.get_ops():
        if select.get_type_name() == "Select" and select.input_value(0).get_node().get_type_name() == "IsNaN":
            checked = select.input_value(0).get_node().input_value(0)
            if checked.get_node().get_type_name() == "ScaledDotProductAttention":
                for reader in select.output(0).get_target_inputs():
                    reader.replace_source_output(checked)
