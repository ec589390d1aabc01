"""An ONNX file in, a ``Program`` out; or one clear error.

Weights in external files are mapped when they are read, not now; only their presence and length are checked.
What is checked beyond that is what a damaged file breaks: protobuf has no checksum, and a file cut off at the
right byte still parses, only without its last fields.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import google.protobuf.message  # type: ignore[import-untyped]  # protobuf ships no stubs
import onnx
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.load.rare import make_dense, open_negative, refuse_maps
from ruvcompile.program import Program, Source
from ruvrun.bundle import file_sha256

_UNSOUND = (ir.serde.SerdeError, onnx.checker.ValidationError, ValueError, TypeError, KeyError, MemoryError)
_MOST_SHOWN = 100


def load_onnx(path: Path, named_as: str) -> Program:
    """Load the graph in the ONNX file at ``path``.

    Args:
        path: the file; data files it refers to lie in its folder, and must stay while weights are still read.
        named_as: how the user called it; it stands in messages and in ``Source.path``.

    Raises:
        InputError: the file is missing or unreadable, not an ONNX model, cut off, inconsistent, or its external
            data is missing, too short, or outside its folder.
    """
    try:
        proto = onnx.load_model(str(path), format="protobuf", load_external_data=False)
    except FileNotFoundError:
        raise InputError("file-missing", f"no model at {named_as}", hint="check the path") from None
    except OSError as error:
        raise InputError(
            "file-unreadable", f"cannot read {named_as}: {error.strerror}", hint="check its permissions"
        ) from None
    except (google.protobuf.message.DecodeError, ValueError):
        raise _not_sound(named_as, "it does not parse as an ONNX protobuf") from None
    if not proto.HasField("graph") or not (proto.graph.node or proto.graph.output):
        raise _not_sound(named_as, "it holds no graph")
    if not proto.opset_import:
        raise _not_sound(named_as, "it states no operator set")
    if not proto.graph.output:
        raise _not_sound(named_as, "its graph has no outputs")
    if wrong := _undefined(proto) or _twice(proto.graph):
        raise _not_sound(named_as, wrong)
    refuse_maps(proto, named_as)
    open_negative(proto)
    try:
        make_dense(proto, path.resolve().parent)
        model = ir.from_proto(proto)
        model.graph.sort()
    except _UNSOUND as error:
        why = _circle(proto.graph) or str(error.__cause__ or error).splitlines()[0]
        raise _not_sound(named_as, why) from None
    _place_external(model, lambda tensor: _found(tensor, path, named_as))
    return Program(path.stem or path.name, model, Source(named_as, file_sha256(path)), None)


def _place_external(model: ir.Model, place: Callable[[ir.ExternalTensor], ir.ExternalTensor]) -> None:
    """Replace every tensor of ``model`` whose data is in another file: weights, and constants in nodes and bodies."""
    graphs = [*model.graphs(), *(function.graph for function in model.functions.values())]
    for graph in graphs:
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = place(value.const_value)
        for node in graph:
            for name, attribute in node.attributes.items():
                if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                    node.attributes[name] = ir.AttrTensor(name, place(attribute.value))


def _undefined(proto: onnx.ModelProto) -> str | None:
    """The first name that is read but nowhere made, as a sentence; None when all is well."""
    made = _names(proto.graph)
    for output in proto.graph.output:
        if output.name not in made:
            return f"its output {output.name!r} is made by no node"
    return _undefined_in(proto.graph, set())


def _undefined_in(graph: onnx.GraphProto, around: set[str]) -> str | None:
    known = around | _names(graph)
    for node in graph.node:
        for name in node.input:
            if name and name not in known:
                return f"node {node.name or node.op_type!r} reads {name!r}, which is made nowhere"
        for attribute in node.attribute:
            for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
                if problem := _undefined_in(body, known):
                    return problem
    return None


def _twice(graph: onnx.GraphProto) -> str | None:
    """The first weight that is there twice with different data, as a sentence: which of them counts nobody says."""
    seen: dict[str, onnx.TensorProto] = {}
    for tensor in graph.initializer:
        if seen.setdefault(tensor.name, tensor) != tensor:
            return f"it holds two different weights of the name {tensor.name!r}"
    return None


def _circle(graph: onnx.GraphProto) -> str | None:
    """The nodes of a circle, as a sentence; None where there is none outside of bodies."""
    makers = {name: number for number, node in enumerate(graph.node) for name in node.output if name}
    sorter = TopologicalSorter(
        {number: {makers[name] for name in _read(node) if name in makers} for number, node in enumerate(graph.node)}
    )
    try:
        sorter.prepare()
    except CycleError as error:
        names = [graph.node[number].name or graph.node[number].op_type for number in error.args[1]]
        shown = " -> ".join(names if len(names) < 8 else (*names[:4], "...", *names[-2:]))
        return f"these nodes form a cycle: {shown}"
    return None


def _read(node: onnx.NodeProto) -> Iterator[str]:
    """The names that a node reads, in its bodies too."""
    yield from node.input
    for attribute in node.attribute:
        for body in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else ())):
            own = _names(body)
            yield from (name for inner in body.node for name in _read(inner) if name not in own)
            yield from (output.name for output in body.output if output.name not in own)


def _names(graph: onnx.GraphProto) -> set[str]:
    names = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    names.update(name for node in graph.node for name in node.output if name)
    return names


def _found(tensor: ir.ExternalTensor, model: Path, named_as: str) -> ir.ExternalTensor:
    """``tensor`` with its data where it really lies, once it is sure that it is there.

    It lies in the model's folder, by name and in truth. Where both the model and its data are links, as in the cache of
    a hub, it may also lie in the folder into which the model's link leads.
    """
    missing = InputError(
        "external-data-missing",
        f"{named_as} keeps {tensor.name} in {str(tensor.location)[:_MOST_SHOWN]!r}, which is not there",
        context=[f"expected in {model.parent}"],
        hint="copy the data file along with the model",
    )
    try:
        named = model.parent / tensor.location
        path = (named if named.exists() else model.resolve().parent / tensor.location).resolve()
    except (OSError, ValueError, RuntimeError):  # what is no name, and a link in a circle
        raise missing from None
    folders = (model.parent.resolve(), model.resolve().parent)
    inside = not Path(tensor.location).is_absolute() and ".." not in Path(tensor.location).parts
    if not inside or not any(path.is_relative_to(folder) for folder in folders):
        raise InputError(
            "external-data-outside",
            f"{named_as} keeps {tensor.name} in {tensor.location}, outside its own folder",
            hint="save the model with its data beside it",
        )
    if not path.is_file():
        raise missing
    status = path.stat()
    offset, needed = tensor.offset or 0, max(tensor.length or 0, tensor.nbytes)
    if offset < 0:
        raise _not_sound(named_as, f"the data of {tensor.name} begins at {offset}")
    if tensor.length and tensor.length < tensor.nbytes:
        said = f"{tensor.name} has {tensor.length} bytes in {tensor.location}, its shape needs {tensor.nbytes}"
        raise _not_sound(named_as, said)
    if status.st_size < offset + needed:
        raise InputError(
            "external-data-short",
            f"{tensor.location} ends before the data of {tensor.name}",
            context=[f"it has {status.st_size} bytes"],
            hint="the data file is cut off or belongs to another model; copy it again",
        )
    if status.st_nlink > 1:
        raise InputError(
            "external-data-linked",
            f"{tensor.location} has several hard links, and such data is not read",
            hint=f"make a copy of its own: cp {tensor.location} copy && mv copy {tensor.location}",
        )
    return ir.ExternalTensor(
        path.name,
        tensor.offset,
        tensor.length,
        tensor.dtype,
        shape=tensor.shape,
        name=tensor.name,
        base_dir=path.parent,
    )


def _not_sound(named_as: str, why: str) -> InputError:
    return InputError(
        "model-invalid",
        f"{named_as} is not a sound ONNX model",
        context=[why],
        hint="get the file again, or export it anew",
    )
