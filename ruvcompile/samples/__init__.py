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

from ruvcompile.errors import FitError, InputError, UsageError
from ruvcompile.passes.infer import spelt
from ruvcompile.samples.conventions import Guess, Port, guesses, looks_like_audio, looks_like_state, values
from ruvcompile.samples.given import fits, fitting, only_array, read_given, times
from ruvcompile.samples.ports import check_names, no_tensor, port_of
from ruvcompile.samples.state import state_pairs
from ruvcompile.whole import open_session, run
from ruvrun.elements import Array, Value

_MANY = 10_000
_MOST_TRIES = 64
_BYTES = 12  # of a number while it is made: as float64, and as what the model takes


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
    check_names(model, shapes, arrays, inputs)
    sizes = _Sizes({}, {})
    ports: list[Port] = []
    others: dict[str, Value] = {}
    for value in model.graph.inputs:
        name = value.name or ""
        if not isinstance(value.type, ir.TensorType):
            others[name] = no_tensor(value, arrays, inputs)
            continue
        port = port_of(value, arrays.get(name), shapes.get(name))
        if name in shapes:
            if not fits(port.shape, shapes[name]):
                raise UsageError(
                    "shape-wrong",
                    f"--shape {name}={times(shapes[name])} does not fit the model's {times(port.shape)}",
                    hint="give as many sizes as it has dimensions; those that are numbers are fixed",
                )
            if 0 in shapes[name] and not looks_like_state(name):
                raise UsageError(
                    "shape-empty",
                    f"--shape {name}={times(shapes[name])} holds nothing, and nothing can be measured on it",
                    hint="give sizes of 1 or more",
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


__all__ = ["Samples", "sample"]
