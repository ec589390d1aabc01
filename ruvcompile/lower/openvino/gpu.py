"""Lower a decoder stage for a GPU: keys and values in variables, whose order a device may change, and a mask.

1. Past and present become variables with a ``Gather`` by ``beam_idx`` behind each (``states``): the shape in which the
   GPU's kernels keep keys and values in place.
2. What attention sees is an input (``masks``), so that positions can be taken out without moving any.

Numbers are of the type of keys and values, ``f16`` or ``f32``. Activations stay as they are: attention here adds up in
an order that depends on how a prompt was divided, and rounding to eight bits would make much of the last digit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import openvino as ov

from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.openvino.bundle import Form, write_form
from ruvcompile.lower.openvino.masks import masked
from ruvcompile.lower.openvino.states import make_stateful
from ruvrun.executors.openvino.devices import release


def write(draft: Draft) -> Written:
    """Lower a stage and write its files.

    Raises:
        InputError: the model has something that OpenVINO does not compute.
    """
    return write_form(draft, Form(_shape, _options, "openvino-gpu", requires={"openvino": release(ov.__version__)}))


def _shape(model: Any, draft: Draft, windows: Sequence[int]) -> None:
    make_stateful(model, draft)
    masked(model, windows)
    model.validate_nodes_and_infer_types()


def _options(kv_type: str, level: int) -> dict[str, str]:
    del level  # activations are not quantised
    return {
        "INFERENCE_PRECISION_HINT": kv_type,
        "KV_CACHE_PRECISION": kv_type,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0",
    }
