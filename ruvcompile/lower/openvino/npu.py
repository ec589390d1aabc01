"""Lower a decoder stage for an NPU: no state, and shapes that can be made static.

1. Past and present stay what they are in the canonical form, inputs and outputs; but of the present only what is new
   leaves, one key and value for each token. Where it belongs is the executor's to know.
2. What attention sees is an input (``masks``), so that tokens of several sequences can lie on one axis.
3. Ports of keys and values have the type that was asked for; inside numbers are what the device computes with.

How many tokens, how many positions: that is not a matter of what is computed but of the space that a node is given, and
an NPU's compiler wants to know it. So the file leaves these sizes open, and the executor makes two static graphs of it,
one for a token of each sequence and one for a piece of a prompt, over the same weights. That nothing but these sizes is
open is seen here: both are made once, of small sizes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.openvino.bundle import Form, write_form
from ruvcompile.lower.openvino.masks import masked
from ruvcompile.lower.openvino.states import without_checks
from ruvrun.backends import KV_TYPES
from ruvrun.errors import IntegrityError
from ruvrun.executors.openvino.devices import release
from ruvrun.executors.openvino.npu.static import Sizes, make_static

_LINUX = "6.6"
"""The first kernel that OpenVINO's documentation names for inference on an NPU."""


def write(draft: Draft) -> Written:
    """Lower a stage and write its files.

    Raises:
        InputError: the model has something that OpenVINO does not compute, or that cannot be made static.
    """
    requires = {"openvino": release(ov.__version__), "linux": _LINUX}
    return write_form(draft, Form(_shape, _options, "openvino-npu", precision="f16", requires=requires))


def _shape(model: Any, draft: Draft, windows: Sequence[int]) -> None:
    masked(model, windows)
    _only_what_is_new(model, draft.past)
    _typed(model, draft.past, ov.Type(np.dtype(KV_TYPES[draft.kv_type])))
    without_checks(model)
    model.validate_nodes_and_infer_types()
    for tokens in (2, 3):
        static = make_static(model, Sizes(tokens=tokens, positions=8, rows=1))
        opened = [node for node in static.get_ops() if any(port.partial_shape.is_dynamic for port in node.outputs())]
        if opened:
            raise IntegrityError(
                "shape-open",
                f"{opened[0].get_friendly_name()} has no static shape",
                hint="build again with this version of OpenVINO",
            )


def _only_what_is_new(model: Any, past: Sequence[str]) -> None:
    """``present = Concat(past, new)`` stays for attention; the output is ``new``."""
    results = {name: result for result in model.get_results() for name in result.input_value(0).get_names()}
    for name in past:
        present = name.replace("past_", "present_", 1)
        whole = results[present].input_value(0)
        whole.set_names(set())
        new = whole.get_node().input_value(1)
        new.set_names({present})
        results[present].input(0).replace_source_output(new)


def _typed(model: Any, past: Sequence[str], kind: Any) -> None:
    """Let ports of keys and values be of this type."""
    if kind == ov.Type.f32:
        return
    parameters = {parameter.output(0).get_any_name(): parameter for parameter in model.get_parameters()}
    results = {name: result for result in model.get_results() for name in result.input_value(0).get_names()}
    for name in past:
        parameter, readers = parameters[name], parameters[name].output(0).get_target_inputs()
        parameter.set_element_type(kind)
        wide = opset13.convert(parameter, "f32")
        for reader in readers:
            reader.replace_source_output(wide.output(0))
        present = name.replace("past_", "present_", 1)
        new = results[present].input_value(0)
        new.set_names(set())
        narrow = opset13.convert(new, kind.get_type_name())
        narrow.output(0).set_names({present})
        results[present].input(0).replace_source_output(narrow.output(0))


def _options(kv_type: str, level: int) -> dict[str, str]:
    del kv_type, level  # ports have their type, and activations are not quantised
    return {"INFERENCE_PRECISION_HINT": "f16"}
