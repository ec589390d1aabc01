"""Inputs to run a graph on: for measuring, for the golden check, and for comparing the parts with the whole.

In order of authority: arrays from ``--inputs``, sizes from ``--shape``, else a choice. A choice is a guess by
the conventions of exported models (``conventions``), and is proved by running the whole model on it; the guesses
are tried in order until one runs. Whatever was chosen is told in a sentence, to be printed and recorded. The
same model gives the same arrays every time.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import FitError, InputError, UsageError, did_you_mean
from ruvcompile.passes.infer import named_dims, spelt
from ruvcompile.samples.conventions import Guess, Port, guesses, looks_like_audio, values
from ruvcompile.samples.given import fits, fitting, only_array, read_given, times
from ruvcompile.samples.state import state_pairs
from ruvcompile.whole import open_session, run
from ruvrun.elements import Array, Value, bits_of, carrier, element_of

_MANY = 10_000
_MOST_TRIES = 64
_BYTES = 12  # of a number while it is made: as float64, and as what the model takes
_SAME_NUMBERS = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose", "Expand"})


@dataclass(frozen=True)
class Samples:
    """``arrays`` by input name, on which the model ran; ``choices`` are the sentences to print, on state too."""

    arrays: Mapping[str, Value]
    choices: tuple[str, ...]


def sample(
    model: ir.Model, *, inputs: Path | None = None, shapes: Mapping[str, tuple[int, ...]] | None = None
) -> Samples:
    """Inputs on which ``model`` runs.

    Args:
        model: a canonical graph; not changed.
        inputs: an ``.npz`` file with arrays by input name; inputs it lacks are chosen.
        shapes: sizes by input name; an open dimension of the same name in another input gets the same size.

    Raises:
        UsageError: ``shapes`` names no input, or contradicts its declared shape.
        InputError: the file is missing, no archive of arrays, or its arrays do not fit; or nothing runs.
        FitError: an input is larger than this machine's memory.
    """
    shapes = shapes or {}
    arrays = {} if inputs is None else read_given(inputs, [value.name or "" for value in model.graph.inputs])
    _check_names(model, shapes, arrays, inputs)
    sizes = _Sizes({}, {})
    ports: list[Port] = []
    others: dict[str, Value] = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if not isinstance(value.type, ir.TensorType):
            others[name] = _no_tensor(value, arrays, inputs)
            continue
        port = _port(value, arrays.get(name), shapes.get(name))
        if name in shapes:
            if not fits(port.shape, shapes[name]):
                raise UsageError(
                    "shape-wrong",
                    f"--shape {name}={times(shapes[name])} does not fit the model's {times(port.shape)}",
                    hint="give as many sizes as it has dimensions; those that are numbers are fixed",
                )
            sizes.bind(port, shapes[name])
        if name in arrays:
            array = fitting(port, only_array(name, arrays[name], inputs), inputs)
            sizes.bind(port, array.shape)
            port = replace(port, array=array)
        ports.append(port)
    found, guess = _first_that_runs(model, ports, others, sizes.fixed)
    told = [_tell(port, found[port.name], guess, ports, inputs, port.name in shapes) for port in ports]
    told += [_tell_other(name, value, inputs) for name, value in others.items()]
    told += [
        f"state {name}: comes out as {made}; hand it in with the next call" for name, made in state_pairs(model.graph)
    ]
    return Samples(found, tuple(told))


@dataclass(frozen=True)
class _Sizes:
    """Sizes of dimension names as given so far (``fixed``), and with which input each came."""

    fixed: dict[str, int]
    by: dict[str, str]

    def bind(self, port: Port, actual: tuple[int, ...]) -> None:
        """Take the sizes of ``port`` from ``actual``, which has its rank."""
        for dim, size in zip(port.shape, actual, strict=True):
            if not isinstance(dim, str):
                continue
            if self.fixed.setdefault(dim, size) != size:
                both = f"{self.fixed[dim]} in {self.by[dim]}", f"{size} in {port.name}"
                raise InputError(
                    "input-sizes-differ",
                    f"dimension {dim} is {' and '.join(both)}",
                    hint="give sizes and arrays that agree: a dimension has one size in all inputs",
                )
            self.by.setdefault(dim, port.name)


def _first_that_runs(
    model: ir.Model, ports: list[Port], others: Mapping[str, Value], fixed: Mapping[str, int]
) -> tuple[dict[str, Value], Guess]:
    """The first guess on which the model runs with finite results; else the first on which it runs at all."""
    _require_room(ports, fixed)
    # Optimising costs more than nodes, and the answer is the same.
    session = open_session(model, optimise=len(model.graph) < _MANY)
    second: tuple[dict[str, Value], Guess] | None = None
    why: InputError | None = None
    for guess in itertools.islice(guesses(ports, fixed), _MOST_TRIES):
        arrays = {port.name: _array(port, guess, ports) for port in ports} | dict(others)
        try:
            outputs = run(session, arrays)
        except InputError as error:
            why = why or error
            continue
        floats = [each for each in outputs.values() if isinstance(each, np.ndarray) and each.dtype.kind == "f"]
        if all(np.isfinite(each).all() for each in floats):
            return arrays, guess
        second = second or (arrays, guess)
    if second is not None:
        return second
    raise InputError(
        "no-sample-runs",
        "no inputs were found on which the model runs",
        context=[*(_describe(port, fixed) for port in ports), *(why.context if why is not None else ())],
        hint="give inputs that run with --inputs F.npz, or sizes with --shape NAME=1x3x640x640",
    )


def _require_room(ports: list[Port], fixed: Mapping[str, int]) -> None:
    """Refuse inputs that are larger, as the model or the user has them, than this machine's memory."""
    for port in ports:
        sizes = [fixed.get(dim, 1) if isinstance(dim, str) else dim for dim in port.shape]
        wanted, there = math.prod(sizes) * _BYTES, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        if port.array is None and wanted > there:
            raise FitError(
                "sample-too-large",
                f"an input {port.name} of {times(tuple(sizes))} takes {wanted / 2**30:.1f} GiB to make",
                context=[f"this machine has {there / 2**30:.1f} GiB"],
                hint=f"give smaller sizes with --shape {port.name}=..., where the model leaves them open",
            )


def _describe(port: Port, fixed: Mapping[str, int]) -> str:
    shape = [fixed.get(dim, dim) if isinstance(dim, str) else dim for dim in port.shape]
    return f"{port.name}: {spelt(ir.TensorType(port.dtype))} {times(tuple(shape))}"


def _array(port: Port, guess: Guess, ports: list[Port]) -> Array:
    return port.array if port.array is not None else values(port, guess, looks_like_audio(ports))[0]


def _tell_other(name: str, value: Value, inputs: Path | None) -> str:
    if value is None:
        return f"input {name}: optional, left out (default)"
    what = f"a sequence of {len(value)}" if isinstance(value, list) else f"{value.dtype} {times(value.shape)}"
    return f"input {name}: {what}, from {inputs}"


def _tell(port: Port, array: Array, guess: Guess, ports: list[Port], inputs: Path | None, sized: bool) -> str:
    head = f"input {port.name}: {spelt(ir.TensorType(port.dtype))} {times(array.shape)}"
    if port.array is not None:
        return f"{head}, from {inputs}"
    how = values(port, guess, looks_like_audio(ports))[1]
    return f"{head} as given, {how} (default)" if sized else f"{head}, {how} (default)"


def _check_names(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]], arrays: Mapping[str, Value], inputs: Path | None
) -> None:
    known = [value.name or "" for value in model.graph.inputs]
    for name in shapes:
        if name not in known:
            raise UsageError("shape-unknown", f"--shape: no input is called {name!r}", hint=did_you_mean(name, known))
    for name in arrays:
        if name not in known:
            raise InputError("input-unknown", f"{inputs}: no input is called {name!r}", hint=did_you_mean(name, known))


def _port(value: ir.Value, array: Array | None, shape: tuple[int, ...] | None) -> Port:
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


def _no_tensor(value: ir.Value, arrays: Mapping[str, Value], inputs: Path | None) -> Value:
    """What was given for an input that is a sequence or an optional; an optional may be left out."""
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


__all__ = ["Samples", "sample"]
