"""A stage as files for OpenVINO: ``stage.xml``, and its constants by content."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import numpy as np
import onnx_ir as ir
import openvino as ov

from ruvcompile.errors import InputError, IntegrityError
from ruvcompile.lower.draft import KV_TYPES, Draft, Written
from ruvcompile.lower.edit import Edit, integer
from ruvcompile.lower.files import by_rows, decoder_groups, graph_groups, hashed, ports, write_model
from ruvcompile.lower.openvino.names import name_layers
from ruvcompile.lower.openvino.parts import part_constants
from ruvcompile.lower.openvino.states import make_stateful
from ruvcompile.lower.rows import gather_rows
from ruvcompile.lower.sheet import sheet_of
from ruvcompile.passes.pieces import unit_of
from ruvrun.executors.openvino import EMBEDDED, WINDOWS, paged
from ruvrun.profile.sheet import Sheet

MODEL, ONNX = "stage.xml", "stage.onnx"
_PRECISION = "f32"


def write(draft: Draft) -> Written:
    """Lower a stage and write its files.

    Raises:
        InputError: the model has something that OpenVINO does not compute.
    """
    if draft.program.decoder is None:
        return _graph(draft)
    if not draft.canonical:
        raise _cannot("is run as it was exported, which needs ONNX Runtime")
    if draft.kv_type not in KV_TYPES:
        raise InputError(
            "kv-type-unsupported",
            f"OpenVINO has no key/value type {draft.kv_type}",
            hint=f"it has: {', '.join(KV_TYPES)}",
        )
    model, piece = draft.model, draft.piece
    windows = _windows(model)
    inputs = ports(model.graph.inputs, piece.inputs, packed=True)
    outputs = ports(model.graph.outputs, piece.outputs, packed=True)
    outputs = [by_rows(tensor) if tensor.name == "logits" else tensor for tensor in outputs]
    level = max((integer(node, "accuracy_level") for node in model.graph if node.op_type == "MatMulNBits"), default=0)
    if piece.last:
        gather_rows(Edit(model.graph))
    values = {str(value.name): str(node.name) for node in model.graph for value in node.outputs}
    weights = {name: name for name in model.graph.initializers}
    for value in model.graph.inputs:
        if value.name in piece.inputs and not piece.first:
            value.name = EMBEDDED
    sheet = sheet_of(draft.program, model, draft.keyed) if draft.keyed is not None else None
    with tempfile.TemporaryDirectory(dir=draft.store.directory) as folder:
        scratch = Path(folder)
        write_model(model, ONNX, scratch, draft.store, decoder_groups, passing=True)
        _convert(draft, scratch, windows)
        net = ElementTree.parse(scratch / MODEL).getroot()
        units = name_layers(net, values, weights)
        data = np.memmap(scratch / "stage.bin", np.uint8, "r")
        shas = part_constants(net, units, data, weights, draft.store)
    _compact(net)
    (draft.directory / MODEL).write_bytes(ElementTree.tostring(net, encoding="utf-8", xml_declaration=True))
    files = [draft.store.place(sha256, draft.directory, passing=draft.passing) for sha256 in shas]
    return Written(
        MODEL,
        inputs,
        outputs,
        [hashed(draft.directory, MODEL), *files],
        _by_unit(sheet, net) if sheet is not None else None,
        KV_TYPES[draft.kv_type],
        options=_options(draft.kv_type, level, windows),
    )


def _options(kv_type: str, level: int, windows: Sequence[int]) -> dict[str, str]:
    """The settings that decide what is computed; ``level`` is the ``accuracy_level`` of the products."""
    found = {
        "INFERENCE_PRECISION_HINT": _PRECISION,
        "KV_CACHE_PRECISION": kv_type,
        # Level 4 is to compute with activations of eight bits; OpenVINO gives a scale to so many of them.
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": "32" if level == 4 else "0",
    }
    if kv_type == "u8":
        # By channel a block is quantised again while it fills, and results depend on who filled it how.
        found["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
    if any(windows):
        found[WINDOWS] = ",".join(map(str, windows))
    return found


def _convert(draft: Draft, scratch: Path, windows: Sequence[int]) -> None:
    """Read the graph in ``scratch``, give it its state, see that it can be made paged, and write it beside."""
    core, decoder = ov.Core(), draft.program.decoder
    assert decoder is not None
    try:
        model = core.read_model(scratch / ONNX)
        source = "input_ids" if draft.piece.first else EMBEDDED
        if draft.past:
            make_stateful(model, draft.past, source=source, heads=decoder.kv_heads, head_size=decoder.head_size)
            paged(model.clone(), windows)
        ov.serialize(model, scratch / MODEL, scratch / "stage.bin")
    except IntegrityError as error:
        raise _cannot("has attention that OpenVINO does not make paged", error.message) from None
    except RuntimeError as error:
        raise _cannot("has something that OpenVINO does not take", str(error)) from None


def _windows(model: ir.Model) -> list[int]:
    """Of each layer how many positions a token sees; 0 for all.

    Raises:
        InputError: attention does what OpenVINO's reader would take, and its paged attention does not compute.
    """
    found = []
    for node in model.graph:
        if node.op_type == "Attention":
            if "softcap" in node.attributes:
                raise _cannot(f"caps attention scores ({node.name}), which OpenVINO's paged attention does not")
            found.append(integer(node, "left_window_size") + 1 if "left_window_size" in node.attributes else 0)
    return found


def _graph(draft: Draft) -> Written:
    """Any other graph is read by OpenVINO as it is."""
    model, piece = draft.model, draft.piece
    inputs = ports(model.graph.inputs, piece.inputs, packed=False)
    outputs = ports(model.graph.outputs, piece.outputs, packed=False)
    sheet = sheet_of(draft.program, model, draft.keyed) if draft.keyed is not None else None
    files = write_model(model, ONNX, draft.directory, draft.store, graph_groups, passing=draft.passing)
    try:
        ov.Core().read_model(draft.directory / ONNX)
    except RuntimeError as error:
        raise _cannot("has something that OpenVINO does not take", str(error)) from None
    return Written(ONNX, inputs, outputs, files, sheet, options={"INFERENCE_PRECISION_HINT": _PRECISION})


def _by_unit(sheet: Sheet, net: ElementTree.Element) -> Sheet:
    """The sheet with the layers of ``net`` in place of the canonical form's nodes."""
    layers: dict[str, list[str]] = {}
    for layer in net.iterfind("layers/layer"):
        name = layer.get("name", "")
        if name.startswith("/"):
            layers.setdefault(unit_of(name), []).append(name)
    units = [msgspec.structs.replace(unit, nodes=layers[unit_of(unit.nodes[0])]) for unit in sheet.unit]
    return msgspec.structs.replace(sheet, unit=units)


def _compact(net: ElementTree.Element) -> None:
    """No white space between elements: a third of the file."""
    for element in net.iter():
        element.tail = None
        if len(element) or (element.text is not None and not element.text.strip()):
            element.text = None


def _cannot(what: str, said: str = "") -> InputError:
    return InputError(
        "openvino-unsupported",
        f"this model {what}",
        context=[line for line in said.splitlines() if line.strip()][:6],
        hint="build for a target whose back end is onnxruntime",
    )


__all__ = ["MODEL", "write"]
