"""The inputs of a graph, and what a user gave for them: names, kinds, how many dimensions, how large numbers may be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ruvcompile.errors import InputError, UsageError, did_you_mean
from ruvcompile.passes.infer import named_dims, spelt
from ruvcompile.samples.conventions import Port
from ruvrun.elements import Array, Value, bits_of, carrier, element_of

_SAME_NUMBERS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand"})


def check_names(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Value], inputs: Path | None
) -> None:
    """Refuse names that no input has.

    Raises:
        UsageError: one that ``--shape`` gives.
        InputError: one in the file of ``--inputs``.
    """
    known = [value.name or "" for value in model.graph.inputs]
    for name in shapes:
        if name not in known:
            raise UsageError("shape-unknown", f"--shape: no input is called {name!r}", hint=did_you_mean(name, known))
    for name in arrays:
        if name not in known:
            raise InputError("input-unknown", f"{inputs}: no input is called {name!r}", hint=did_you_mean(name, known))


def port_of(value: ir.Value, array: Array | None, shape: tuple[int, ...] | None) -> Port:
    """An input that is a tensor: its dimensions as the graph has them, else as many as were given.

    Raises:
        InputError: neither says how many it has.
    """
    name = value.name or ""
    assert isinstance(value.type, ir.TensorType)
    if value.shape is not None:
        dims = named_dims(name, tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape))
    elif array is not None or shape is not None:
        dims = named_dims(name, (None,) * (array.ndim if array is not None else len(shape or ())))
    else:
        raise InputError(
            "input-shape-unknown",
            f"the model does not say how many dimensions its input {name} has",
            hint=f"give an array with --inputs F.npz, or sizes with --shape {name}=1x3x640x640",
        )
    return Port(name, value.type.dtype, dims, limit=_limit(value))


def no_tensor(value: ir.Value, arrays: Mapping[str, Value], inputs: Path | None) -> Value:
    """What was given for an input that is a sequence or an optional; an optional may be left out.

    Raises:
        InputError: it is of another kind or type, or nothing was given for what must not be left out.
    """
    name = value.name or ""
    if name in arrays:
        given = arrays[name]
        kind = spelt(value.type) if value.type is not None else ""
        if isinstance(given, list) is ("seq(" not in kind):
            what = "a sequence" if isinstance(given, list) else "an array"
            raise InputError(
                "input-type-wrong",
                f"{inputs}: {name} is {what}, the model takes {kind}",
                hint=f"a sequence is the arrays {name}[0], {name}[1] and so on",
            )
        items = given if isinstance(given, list) else [given]
        plain = [bits_of(each, element_of(kind)) for each in items]
        if wrong := [each.dtype for each in plain if each.dtype != carrier(element_of(kind))]:
            raise InputError(
                "input-type-wrong",
                f"{inputs}: {name} has {wrong[0]}, the model takes {kind}",
                hint=f"convert it with .astype('{carrier(element_of(kind))}')",
            )
        return plain if isinstance(given, list) else plain[0]
    if isinstance(value.type, ir.OptionalType):
        return None
    raise InputError(
        "input-needed",
        f"the model's input {name} is no tensor, and there is no choice to make for such",
        hint=f"give it with --inputs F.npz; a sequence is the arrays {name}[0], {name}[1] and so on",
    )


def _limit(value: ir.Value) -> int:
    """The number of rows of the smallest table that ``value`` looks up, directly or in another form; 0 for none."""
    sizes: list[int] = []
    waiting, seen = [value], {value}
    while waiting:
        for use in waiting.pop().uses():
            node = use.node
            if node.op_type in _SAME_NUMBERS and use.idx == 0 and (made := node.outputs[0]) not in seen:
                seen.add(made)
                waiting.append(made)
            lookup = node.op_type in ("Gather", "GatherBlockQuantized") and use.idx == 1
            table = node.inputs[0] if lookup else None
            axis = node.attributes.get_int("axis" if node.op_type == "Gather" else "gather_axis", 0)
            rows = _rows(table) if table is not None and axis == 0 else 0
            sizes += [rows] if rows else []
    return min(sizes, default=0)


def _rows(table: ir.Value) -> int:
    """The number of rows of a weight, as it is or dequantised or cast; 0 for what is no weight."""
    maker = table.producer()
    if maker is not None and maker.op_type in ("Cast", "DequantizeLinear", "Identity") and maker.inputs[0] is not None:
        table = maker.inputs[0]
    tensor = table.const_value
    return int(tensor.shape.numpy()[0]) if tensor is not None and tensor.shape.rank() else 0
