"""Paged attention, which no file can hold: taken out of a graph when it is written, put back when it is loaded.

OpenVINO's pass that makes attention paged takes as long as a tenth of loading, and what it works on is a graph that is
half as large again as what it leaves. So it runs where a stage is built. There every paged operator is taken out, and
what went in and came out of it become ends of the graph (``take_out``)::

    attention.3.0, .1, .2    results: queries, keys and values of layer 3, [tokens, heads * size]
    attention.3.9, ...       results: its constants (scale, window, slopes), as far as they are not empty
    attended.3               input: what came out, [tokens, heads * size]

Where a stage is loaded (``put_back``), the same pass is run once over a decoder of one layer and no weights. What it
makes of that is the operator as the OpenVINO at hand wants it: how many inputs it has, which of them are arrays that
all layers share, and what it must know besides. Each layer gets one like it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import op, opset13
from openvino._offline_transformations import paged_attention_transformation

from ruvrun.errors import IntegrityError
from ruvrun.executors.openvino.ports import BEAMS, EMBEDDED, IDS, POSITIONS
from ruvrun.manifest import KeyValue

OPERATION = "PagedAttentionExtension"

_KEYS, _VALUES, _WINDOW = 3, 4, 10
"""Which inputs are the cache of keys, that of values, and how many positions a token sees."""
_KNOWN = ("num_k_heads", "k_head_size", "num_v_heads", "v_head_size")
"""What it must know besides."""

_TAKEN, _ATTENDED = "attention", "attended"


def make_paged(model: Any, windows: Sequence[int]) -> None:
    """Make the attention of a stateful model paged, in place.

    Args:
        windows: of each layer, how many positions a token sees, itself the last of them; 0 for all.

    Raises:
        IntegrityError: not every one of the layers was made paged.
    """
    (source,) = [port for port in model.inputs if port.get_any_name() in (IDS, EMBEDDED)]
    name, width = source.get_any_name(), list(source.get_partial_shape())[2:]
    paged_attention_transformation(model)
    operations = _operations(model)
    if len(operations) != len(windows):
        raise IntegrityError(
            "attention-not-paged",
            f"OpenVINO made {len(operations)} of {len(windows)} layers paged",
            hint="build again with this version of OpenVINO",
        )
    for layer, operation in operations.items():
        # What the standard hides from a token is lost on the way, whatever it was.
        operation.input(_WINDOW).replace_source_output(opset13.constant(np.int32(windows[layer])).output(0))
    # How wide a token is gets lost, too, and with it the kernels that need to know.
    model.reshape({name: ov.PartialShape([-1, *width])})


def take_out(model: Any) -> None:
    """Take the paged operators out of ``model``, in place; see above."""
    arrays = set()
    for layer, operation in _operations(model).items():
        for number, port in enumerate(operation.inputs()):
            source = port.get_source_output()
            node = source.get_node()
            if node.get_type_name() == "Parameter":
                arrays.add(source.get_any_name())
            elif node.get_type_name() != "Constant" or 0 not in list(source.get_shape()):
                end = opset13.result(source)
                end.set_friendly_name(f"{_TAKEN}.{layer}.{number}")
                model.add_results([end])
        made = operation.output(0)
        after = _input(f"{_ATTENDED}.{layer}", made.get_partial_shape(), made.get_element_type())
        for reader in made.get_target_inputs():
            reader.replace_source_output(after.output(0))
        model.add_parameters([after])
    for parameter in model.get_parameters():
        if parameter.output(0).get_any_name() in arrays:
            model.remove_parameter(parameter)


def put_back(model: Any, kv: KeyValue) -> None:
    """Give ``model`` its paged operators again, in place.

    Raises:
        IntegrityError: it has not the layers of attention that it should have.
    """
    like = _operations(_one_layer(kv))[0]
    attended = {
        name: each for each in model.get_parameters() if (name := each.get_friendly_name()).startswith(_ATTENDED)
    }
    taken: dict[int, dict[int, Any]] = {}
    for result in model.get_results():
        name = result.get_friendly_name()
        if (layer := layer_of(name)) is not None:
            taken.setdefault(layer, {})[int(name.rpartition(".")[2])] = result
    if sorted(taken) != [*range(kv.layers)] or len(attended) != kv.layers:
        raise IntegrityError(
            "attention-missing", f"the graph has {len(taken)} of {kv.layers} layers of attention", hint="build again"
        )
    arrays: dict[str, Any] = {}
    for layer in sorted(taken):
        sources = {number: result.input_value(0) for number, result in taken[layer].items()}
        operation = _like(like, layer, sources, arrays)
        after = attended[f"{_ATTENDED}.{layer}"]
        for reader in after.output(0).get_target_inputs():
            reader.replace_source_output(operation.output(0))
        model.remove_parameter(after)
        for result in taken[layer].values():
            model.remove_result(result)
    model.add_parameters([*arrays.values()])
    model.validate_nodes_and_infer_types()


def layer_of(name: str) -> int | None:
    """The number of the layer whose attention the end of a graph called ``name`` is of; None for any other name."""
    kind, _, place = name.partition(".")
    return int(place.partition(".")[0]) if kind in (_TAKEN, _ATTENDED) else None


def _like(like: Any, layer: int, sources: Mapping[int, Any], arrays: dict[str, Any]) -> Any:
    """A paged operator as ``like``, with ``sources`` for its inputs; arrays by name are made where there are none."""
    inputs = []
    for number in range(like.get_input_size()):
        source = sources.get(number, like.input_value(number))
        node = source.get_node()
        if number not in sources and node.get_type_name() == "Parameter":
            name = source.get_any_name()
            if number in (_KEYS, _VALUES):
                name = f"{name.rpartition('.')[0]}.{layer}"
            if name not in arrays:
                arrays[name] = _input(name, source.get_partial_shape(), source.get_element_type())
            source = arrays[name].output(0)
        inputs.append(source)
    made = op._PagedAttentionExtension(inputs)
    made.set_friendly_name(f"/layers.{layer}/attn/{OPERATION}")
    for key, value in like.get_rt_info().items():
        if key in _KNOWN:
            made.get_rt_info()[key] = value.astype(int)
    return made


def _one_layer(kv: KeyValue) -> Any:
    """Paged attention over keys and values like ``kv`` of one layer, and nothing else."""
    width = kv.heads * kv.head_size
    source = _input(EMBEDDED, [-1, -1, width], ov.Type.f32)
    positions, beams = _input(POSITIONS, [-1, -1], ov.Type.i64), _input(BEAMS, [-1], ov.Type.i32)
    by_head = opset13.reshape(source, np.array([0, 0, kv.heads, kv.head_size]), special_zero=True)
    operand = opset13.transpose(by_head, np.array([0, 2, 1, 3]))
    seen, sinks = [], []
    for name in ("past_key.0", "past_value.0"):
        ordered, variable = past_state(name, batch_of(source), beams, kv.heads, kv.head_size)
        seen.append(opset13.concat([ordered, operand], 2))
        sinks.append(op.assign(seen[-1], variable))
    mask = opset13.constant(np.zeros((1, 1), np.float32))
    attended = opset13.scaled_dot_product_attention(operand, *seen, mask)
    model = ov.Model([opset13.result(attended)], sinks, [source, positions, beams], "layer")
    make_paged(model, [0])
    return model


def batch_of(source: Any) -> Any:
    """How many sequences ``source`` holds on its first axis, as a tensor of one number."""
    shape = opset13.shape_of(source, output_type="i64")
    return opset13.gather(shape, opset13.constant(np.array([0])), opset13.constant(np.int64(0)))


def past_state(name: str, batch: Any, beams: Any, heads: int, head_size: int) -> tuple[Any, Any]:
    """A state ``[batch, heads, positions, head_size]`` that begins empty, in the order of beams; and its variable."""
    empty = opset13.concat([batch, opset13.constant(np.array([heads, 0, head_size], np.int64))], 0)
    info = op.util.VariableInfo()
    info.data_shape = ov.PartialShape([-1, heads, -1, head_size])
    info.data_type, info.variable_id = ov.Type.f32, name
    variable = op.util.Variable(info)
    read = op.read_value(opset13.broadcast(opset13.constant(np.float32(0)), empty), variable)
    return opset13.gather(read, beams, opset13.constant(np.int64(0))), variable


def _input(name: str, shape: Any, dtype: Any) -> Any:
    made = op.Parameter(dtype, ov.PartialShape(shape))
    made.set_friendly_name(name)
    made.output(0).set_names({name})
    return made


def _operations(model: Any) -> dict[int, Any]:
    """The paged operators of ``model``, by the number of their layer."""
    found = [node for node in model.get_ops() if node.get_type_name() == OPERATION]
    return {int(node.input_value(_KEYS).get_any_name().rpartition(".")[2]): node for node in found}
