"""A stage as files for OpenVINO: ``stage.xml``, and its constants by content."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import onnx_ir as ir
import openvino as ov
from openvino._offline_transformations import apply_fused_names_cleanup, apply_moc_transformations

from ruvcompile.errors import InputError, IntegrityError
from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.edit import Edit, integer
from ruvcompile.lower.files import by_rows, decoder_groups, graph_groups, hashed, ports, write_model
from ruvcompile.lower.openvino.constants import part_constants, reshape_scales, share_constants
from ruvcompile.lower.openvino.names import name_layers
from ruvcompile.lower.openvino.states import make_stateful
from ruvcompile.lower.projections import stack_alike
from ruvcompile.lower.rows import gather_rows
from ruvcompile.lower.sheet import sheet_of
from ruvcompile.passes.pieces import unit_of
from ruvrun.backends import BACK_ENDS, CPU, KV_TYPES, device_for
from ruvrun.executors.openvino.cpu.attention import make_paged, take_out
from ruvrun.executors.openvino.devices import release
from ruvrun.executors.openvino.ports import EMBEDDED
from ruvrun.profile.sheet import Sheet

MODEL, ONNX = "stage.xml", "stage.onnx"
_PRECISION = "f32"


@dataclass(frozen=True)
class Form:
    """What a decoder stage is made into for one kind of device.

    Attributes:
        shape: gives a graph as OpenVINO's reader made it its state, in place; of each layer it is told how many
            positions a token sees, 0 for all.
        options: the settings that decide what is computed, of a type of keys and values and the ``accuracy_level`` of
            the products.
        backend: the one that it is of, whose types keys and values may have.
        precision: of the numbers of a graph that is no decoder, which has no other options.
        requires: the least versions that a node must have.
        stacked: whether products of one input become one.
    """

    shape: Callable[[Any, Draft, Sequence[int]], None]
    options: Callable[[str, int], Mapping[str, str]]
    backend: str
    precision: str = _PRECISION
    requires: Mapping[str, str] = field(default_factory=dict)
    stacked: bool = True


def write(draft: Draft) -> Written:
    """Lower a stage for a CPU and write its files.

    Raises:
        InputError: the model has something that OpenVINO does not compute.
    """
    precision = draft.program.precision
    needs = {"openvino": release(ov.__version__)}
    return write_form(draft, Form(_flat, partial(_options, precision), "openvino", precision, needs))


def write_form(draft: Draft, form: Form) -> Written:
    """Lower a stage into ``form`` and write its files; as ``write``."""
    if draft.program.decoder is None:
        return _graph(draft, form)
    if not draft.canonical:
        raise _cannot("is run as it was exported, which needs ONNX Runtime")
    kinds = BACK_ENDS[form.backend].kv_types.get(draft.program.precision, ())
    if draft.kv_type not in kinds:
        raise InputError(
            "kv-type-not-in-form",
            f"OpenVINO has no key/value type {draft.kv_type} in this form, with numbers of {form.precision}",
            hint=f"it has: {', '.join(kinds)}",
        )
    model, piece = draft.model, draft.piece
    windows = _windows(model)
    inputs = ports(model.graph.inputs, piece.inputs, packed=True)
    outputs = ports(model.graph.outputs, piece.outputs, packed=True)
    outputs = [by_rows(tensor) if tensor.name == "logits" else tensor for tensor in outputs]
    level = _level(model)
    edit = Edit(model.graph)
    if form.stacked:
        stack_alike(edit)
    edit.drop_unread()
    if piece.last:
        gather_rows(edit)
    values = {str(value.name): str(node.name) for node in model.graph for value in node.outputs}
    weights = {name: name for name in model.graph.initializers}
    attention = [str(node.name) for node in model.graph if node.op_type == "Attention"]
    for value in model.graph.inputs:
        if value.name in piece.inputs and not piece.first:
            value.name = EMBEDDED
    sheet = sheet_of(draft.program, model, draft.keyed) if draft.keyed is not None else None
    with tempfile.TemporaryDirectory(dir=draft.store.directory) as folder:
        scratch = Path(folder)
        write_model(model, ONNX, scratch, draft.store, decoder_groups, passing=True)
        _convert(draft, scratch, windows, form)
        net = ElementTree.parse(scratch / MODEL).getroot()
        units = name_layers(net, values, weights, attention)
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
        options=form.options(draft.kv_type, level),
        requires=form.requires,
    )


def _options(precision: str, kv_type: str, level: int) -> dict[str, str]:
    """The settings that decide what is computed; ``level`` is the ``accuracy_level`` of the products."""
    found = {
        "INFERENCE_PRECISION_HINT": precision,
        "KV_CACHE_PRECISION": kv_type,
        "DYNAMIC_QUANTIZATION_GROUP_SIZE": _groups(level),
    }
    if kv_type == "u8":
        # By channel a block is quantised again while it fills, and results depend on who filled it how.
        found["KEY_CACHE_QUANT_MODE"] = "BY_TOKEN"
    return found


def _level(model: ir.Model) -> int:
    """The highest ``accuracy_level`` of its products."""
    return max((integer(node, "accuracy_level") for node in model.graph if node.op_type == "MatMulNBits"), default=0)


def _groups(level: int) -> str:
    """Level 4 is to compute with activations of eight bits; OpenVINO gives a scale to so many of them."""
    return "32" if level == 4 else "0"


def _convert(draft: Draft, scratch: Path, windows: Sequence[int], form: Form) -> None:
    """Read the graph in ``scratch``, bring it into its form, and write it beside."""
    try:
        model = ov.Core().read_model(scratch / ONNX)
        if draft.past:
            form.shape(model, draft, windows)
        ov.serialize(model, scratch / MODEL, scratch / "stage.bin")
    except IntegrityError as error:
        raise _cannot("has attention that OpenVINO does not take as it should be", error.message) from None
    except RuntimeError as error:
        raise _cannot("has something that OpenVINO does not take", str(error)) from None


def _flat(model: Any, draft: Draft, windows: Sequence[int]) -> None:
    """Paged attention, on a flat axis of tokens, and all that can be worked out before it is known where it runs."""
    make_stateful(model, draft)
    try:
        make_paged(model, windows)
    except IntegrityError as error:
        raise _cannot("has attention that OpenVINO does not make paged", error.message) from None
    take_out(model)
    reshape_scales(model)
    # What every loading would do again, for seconds: the graph becomes less than half.
    apply_moc_transformations(model, cf=True, smart_reshape=False)
    apply_fused_names_cleanup(model)  # they are numbered through the process
    share_constants(model)


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


def _graph(draft: Draft, form: Form) -> Written:
    """Any other graph is read by OpenVINO as it is."""
    model, piece = draft.model, draft.piece
    inputs = ports(model.graph.inputs, piece.inputs, packed=False)
    outputs = ports(model.graph.outputs, piece.outputs, packed=False)
    sheet = sheet_of(draft.program, model, draft.keyed) if draft.keyed is not None else None
    files = write_model(model, ONNX, draft.directory, draft.store, graph_groups, passing=draft.passing)
    try:
        ov.Core().read_model(draft.directory / ONNX)
    except RuntimeError as error:
        raise _cannot(_missing(str(error)), str(error)) from None
    options = {"INFERENCE_PRECISION_HINT": form.precision}
    if device_for(form.backend) == CPU:  # others have no such products
        options["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = _groups(_level(model))
    return Written(ONNX, inputs, outputs, files, sheet, options=options, requires=form.requires)


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


def _missing(said: str) -> str:
    """What a graph has that OpenVINO does not, as far as it says so."""
    named = re.search(r"No conversion rule found for operations: ([^\n]+)", said)
    if named is None:
        return "has something that OpenVINO does not take"
    operators = re.sub(r"-\d+\b", "", named.group(1))  # their versions
    return f"has operators that OpenVINO does not have: {operators}"


def _cannot(what: str, said: str = "") -> InputError:
    return InputError(
        "openvino-unsupported",
        f"this model {what}",
        context=[line for line in said.splitlines() if line.strip()][:6],
        hint="build for a target that has onnxruntime: of one with both, what OpenVINO cannot run stays there",
    )


__all__ = ["MODEL", "Form", "write", "write_form"]
