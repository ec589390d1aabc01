"""The constants of an intermediate representation as files by content, one for each attention, MLP, embedding, head.

OpenVINO writes all constants one behind the other into one file, and the graph says where in it each begins. That file
would be another one after every move of a cut. So it is divided: the constants of a part of the model are a file that
does not depend on anything else, and the graph tells offsets in what the executor puts together of them
(``ruvrun.executors.openvino.intermediate``): the files in the order of ``bundle.toml``, each from the next multiple of
``PAGE`` on.

Small ones, shapes and axes for the most part, are a file of the stage.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
from openvino import opset13

from ruvcompile.lower.files import ROTARY
from ruvcompile.lower.weights import ALIGNMENT, INLINE_BYTES, WeightStore
from ruvcompile.passes.pieces import unit_of
from ruvrun.executors.openvino.intermediate import PAGE

Bytes = npt.NDArray[np.uint8]
_REST = ""
_SHAPE_BYTES = 64


def part_constants(
    net: ElementTree.Element, units: Mapping[str, str], data: Bytes, weights: Mapping[str, str], store: WeightStore
) -> list[str]:
    """Put the constants of ``net`` into the store, and let it tell where they are now.

    Args:
        net: the graph; changed.
        units: of each layer, by id.
        data: what its constants are in.
        weights: names of the constants that are weights of the model, in ``net`` and in the program.

    Returns:
        SHA-256 of the files, in the order in which they are to be joined.
    """
    groups: dict[str, dict[str, Bytes]] = {}
    placed: list[tuple[ElementTree.Element, str, str]] = []
    for layer in net.iterfind("layers/layer[@type='Const']"):
        entry = layer.find("data")
        assert entry is not None
        start, size = int(entry.get("offset", "")), int(entry.get("size", ""))
        content = data[start : start + size]
        name = weights.get(layer.get("name", ""), "")
        group = (_group(name) if name else units[layer.get("id", "")]) if size > INLINE_BYTES else _REST
        digest = hashlib.sha256(content.data).hexdigest()
        groups.setdefault(group, {})[digest] = content
        placed.append((entry, group, digest))
    at = 0
    begins: dict[str, int] = {}
    starts: dict[tuple[str, str], int] = {}
    for group, contents in sorted(groups.items()):
        # Equal constants are one; and the order is a matter of what they hold, so that a tied head is its embedding.
        order = [digest for _, digest in sorted((-content.size, digest) for digest, content in contents.items())]
        offsets = _offsets(order, contents)
        sha256 = store.keep(_pieces(order, offsets, contents))
        if sha256 not in begins:
            begins[sha256] = at
            length = offsets[order[-1]] + contents[order[-1]].size
            at += -(-length // PAGE) * PAGE
        starts.update({(group, digest): begins[sha256] + offset for digest, offset in offsets.items()})
    for entry, group, digest in placed:
        entry.set("offset", str(starts[group, digest]))
    return list(begins)


def reshape_scales(model: Any) -> None:
    """Give scales of an ``openvino.Model`` the shape in which they are used, in place.

    OpenVINO would do so, too, and call them after something else; but by their names it is known what they belong to.
    """
    for node in model.get_ops():
        if node.get_type_name() != "Constant" or not node.get_element_type().is_real():
            continue
        for reader in _readers(node):
            same = reader.get_type_name() == "Convert" and reader.get_element_type() == node.get_element_type()
            for last in _readers(reader) if same else [reader]:
                if last.get_type_name() == "Reshape" and last.get_output_partial_shape(0).is_static:
                    made = opset13.constant(_view(node, list(last.get_output_shape(0))), shared_memory=True)
                    made.set_friendly_name(node.get_friendly_name())
                    for port in last.output(0).get_target_inputs():
                        port.replace_source_output(made.output(0))


class _View:
    """The memory of a constant in another shape, which keeps it there; as NumPy takes it."""

    def __init__(self, node: Any, shape: Sequence[int]) -> None:
        self.node = node
        data = node.get_data()
        # Nobody writes there, but a constant that is not a copy wants to be able to.
        where = (data.ctypes.data, False)
        self.__array_interface__ = {"version": 3, "typestr": data.dtype.str, "shape": tuple(shape), "data": where}


def _view(node: Any, shape: Sequence[int]) -> npt.NDArray[Any]:
    return np.asarray(_View(node, shape))


def _readers(node: Any) -> list[Any]:
    return [port.get_node() for port in node.output(0).get_target_inputs()]


def share_constants(model: Any) -> None:
    """Let equal constants of an ``openvino.Model`` that are shapes or axes be one, in place: a third of its nodes.

    Others are not touched: some of OpenVINO's rules change what belongs to a weight where it is.
    """
    known: dict[tuple[str, tuple[int, ...], bytes], Any] = {}
    for node in model.get_ordered_ops():
        if node.get_type_name() != "Constant" or node.get_byte_size() > _SHAPE_BYTES:
            continue
        made = node.output(0)
        kind = (made.get_element_type().get_type_name(), tuple(made.get_shape()), node.get_data().tobytes())
        if kind[0] in ("i32", "i64") and (first := known.setdefault(kind, node)) is not node:
            for reader in made.get_target_inputs():
                reader.replace_source_output(first.output(0))


def _group(name: str) -> str:
    """The part a weight of the program belongs to, by its name: a tied head's to the embedding."""
    if name.startswith(ROTARY):
        return name.partition(".")[0]
    first, *rest = name.split(".")
    return unit_of("/".join([f"{first}.{rest[0]}", *rest[1:]] if first == "layers" else [first, *rest]))


def _offsets(order: list[str], contents: Mapping[str, Bytes]) -> dict[str, int]:
    offsets, at = {}, 0
    for digest in order:
        at += -at % ALIGNMENT
        offsets[digest] = at
        at += contents[digest].size
    return offsets


def _pieces(
    order: list[str], offsets: Mapping[str, int], contents: Mapping[str, Bytes]
) -> Iterator[bytes | memoryview]:
    at = 0
    for digest in order:
        yield b"\0" * (offsets[digest] - at)
        yield contents[digest].data
        at = offsets[digest] + contents[digest].size
