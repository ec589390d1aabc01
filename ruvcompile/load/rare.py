"""What an ONNX file may hold and the compiler has no form for: sparse weights, which become dense, sizes below nought,
which are open ones, and maps.

A back end makes dense tensors of sparse weights as well, when it loads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import onnx

from ruvcompile.errors import InputError


def make_dense(proto: onnx.ModelProto, folder: Path) -> None:
    """Turn every sparse weight and constant of ``proto`` into a dense one, in bodies and functions too.

    Args:
        proto: changed.
        folder: where data files lie.

    Raises:
        ValueError: indices that are none.
    """
    scopes: list[Iterable[onnx.NodeProto]] = [proto.graph.node, *(function.node for function in proto.functions)]
    graphs = [proto.graph, *(body for nodes in scopes for body in _bodies(nodes))]
    for graph in graphs:
        for weight in graph.sparse_initializer:
            graph.initializer.append(_dense(weight, weight.values.name, folder))
        del graph.sparse_initializer[:]
    scopes += [graph.node for graph in graphs[1:]]
    for node in (node for nodes in scopes for node in nodes):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.SPARSE_TENSOR:
                dense = _dense(attribute.sparse_tensor, "", folder)
                attribute.Clear()
                attribute.name, attribute.type = "value", onnx.AttributeProto.TENSOR
                attribute.t.CopyFrom(dense)


def open_negative(proto: onnx.ModelProto) -> None:
    """Make an open size of every one below nought: exporters write -1 for it, and so ONNX Runtime reads it."""
    graphs = [proto.graph, *_bodies(proto.graph.node)]
    graphs += [body for function in proto.functions for body in _bodies(function.node)]
    for graph in graphs:
        for value in (*graph.input, *graph.output, *graph.value_info):
            for dim in _dims(value.type):
                if dim.dim_value < 0:
                    dim.Clear()


def _dims(kind: onnx.TypeProto) -> Iterator[onnx.TensorShapeProto.Dimension]:
    inner = kind.WhichOneof("value")
    if inner in ("sequence_type", "optional_type"):
        yield from _dims(getattr(kind, inner).elem_type)
    elif inner in ("tensor_type", "sparse_tensor_type"):
        yield from getattr(kind, inner).shape.dim


def _bodies(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.GraphProto]:
    for node in nodes:
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                yield body
                yield from _bodies(body.node)


def _dense(sparse: onnx.SparseTensorProto, name: str, folder: Path) -> onnx.TensorProto:
    values = onnx.numpy_helper.to_array(sparse.values, str(folder))
    indices = onnx.numpy_helper.to_array(sparse.indices, str(folder))
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    try:
        if indices.ndim == 1:
            dense.reshape(-1)[indices] = values
        else:
            dense[tuple(indices.T)] = values
    except IndexError as error:
        raise ValueError(f"the indices of the sparse tensor {sparse.values.name or name!r}: {error}") from None
    return onnx.numpy_helper.from_array(dense, name)


def refuse_maps(proto: onnx.ModelProto, named_as: str) -> None:
    """Refuse a graph that takes or gives maps, which are no tensors and no sequences of them; forget those inside."""
    makers = {name: node for node in proto.graph.node for name in node.output}
    for port in (*proto.graph.input, *proto.graph.output):
        if not _has_map(port.type):
            continue
        maker = makers.get(port.name)
        made = f"it is made by {maker.op_type} ({maker.name or port.name})" if maker else "it is an input"
        raise InputError(
            "port-is-map",
            f"{named_as}: {port.name} is a map, and only tensors and sequences of them go in and out",
            context=[made],
            hint="export it without: skl2onnx takes options={'zipmap': False}",
        )
    kept = [each for each in proto.graph.value_info if not _has_map(each.type)]
    if len(kept) < len(proto.graph.value_info):
        del proto.graph.value_info[:]
        proto.graph.value_info.extend(kept)


def _has_map(kind: onnx.TypeProto) -> bool:
    inner = kind.WhichOneof("value")
    if inner in ("sequence_type", "optional_type"):
        return _has_map(getattr(kind, inner).elem_type)
    return bool(inner == "map_type")
