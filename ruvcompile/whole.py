"""The whole model, run in one piece by ONNX Runtime: the truth that every cut is held against.

A model that was loaded and put into canonical form exists in memory only, with its weights mapped or still to
be computed. Small ones are handed to ONNX Runtime as bytes. Above ``INLINE`` the weights are written once to a
temporary folder and mapped from there; the folder is gone when the session is open.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from ruvcompile.errors import InputError
from ruvcompile.passes.infer import Type, infer
from ruvcompile.passes.inline import has_external, inline
from ruvrun.elements import Array, Value
from ruvrun.executors.graph import call, elements_of, to_ort
from ruvrun.executors.sessions import open_exact
from ruvrun.scratch import scratch_folder

INLINE = 64 << 20
"""Bytes of weights up to which a model is handed over in memory, where it stands several times while it loads."""

ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(_state).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
"""What ONNX Runtime raises: fifteen classes without a common base."""

REFUSALS: tuple[type[Exception], ...] = (*ERRORS, ValueError, TypeError, RuntimeError)
"""And for inputs that do not fit, which it finds out while it takes them."""

_LOADED = re.compile(r"(?<=: )Load model from .*?model\.onnx failed: ?")
_SOURCE = re.compile(r"/onnxruntime_src/\S+:\d+ [^(]*\(")
_PIECE = 256
_MANY = 2048
_MOST_PIECES = 8
_EXTERNAL_FOLDER = "session.model_external_initializers_file_folder_path"


def open_session(model: ir.Model, *, threads: int = 0, optimise: bool = True, profile: Path | None = None) -> Any:
    """An ``onnxruntime.InferenceSession`` of ``model`` on the CPU, with pools that do not spin.

    Args:
        model: not changed.
        threads: of one operator; 0 for as many as there are cores.
        optimise: False to run the graph as it stands.
        profile: prefix of the file that ``end_profiling`` writes; None for no profile.

    Raises:
        InputError: ``model-does-not-load``.
    """
    try:
        with _runnable(model) as (source, folder):
            return open_exact(source, lambda: _options(threads, optimise, profile, folder))
    except ERRORS as error:
        raise InputError(
            "model-does-not-load", "ONNX Runtime does not load this model", context=[first_line(error)], hint=_HINT
        ) from None


def run(session: Any, arrays: Mapping[str, Value]) -> dict[str, Value]:
    """The outputs of one run, by name.

    Raises:
        InputError: ``model-does-not-run``: these inputs do not fit the graph.
    """
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, call(session, names, arrays, elements_of(session)), strict=True))
    except REFUSALS as error:
        raise InputError(
            "model-does-not-run",
            "the model does not run on these inputs",
            context=[first_line(error)],
            hint="give inputs that fit with --inputs, or their sizes with --shape",
        ) from None


def run_whole(model: ir.Model, arrays: Mapping[str, Value], *, threads: int = 0) -> dict[str, Value]:
    """Open a session of ``model`` and run it once."""
    return run(open_session(model, threads=threads), arrays)


def observe(model: ir.Model, arrays: Mapping[str, Value], names: Collection[str] | None = None) -> dict[str, Type]:
    """The types of the top-level values of ``model``, graph inputs too, as a run on ``arrays`` shows them.

    Of a graph with very many nodes most follow from the sizes of the inputs by the operators' definitions; only the
    others are looked at, since a run cannot hold them all at once.

    Args:
        model: not changed.
        arrays: the graph's inputs.
        names: values to look at; all by default. Those that are no tensors are left out of the result.
    """
    seen: dict[str, Type | None] = {
        str(value.name): Type(value.type.dtype, tuple(array.shape))
        for value in model.graph.inputs
        if isinstance(value.type, ir.TensorType) and isinstance(array := arrays[str(value.name)], np.ndarray)
    }
    made = [value.name for node in model.graph for value in node.outputs if value.name]
    wanted = [name for name in made if names is None or name in names]
    if len(wanted) > _MANY:
        known = _inferred(model, seen)
        seen.update((name, known[name]) for name in wanted if name in known)
        wanted = [name for name in wanted if name not in known]
    size = max(_PIECE, -(-len(wanted) // _MOST_PIECES))
    for start in range(0, len(wanted), size):
        piece = model.clone()
        values = {value.name: value for node in piece.graph for value in node.outputs}
        # Only these are outputs: every one is a name of its own, and none of the graph's needs to be run for.
        piece.graph.outputs[:] = [values[name] for name in wanted[start : start + size]]
        session = open_session(piece, optimise=False)
        try:
            found = _types(session, arrays)
        except REFUSALS as error:
            raise InputError(
                "model-does-not-run", "the model does not run on these inputs", context=[first_line(error)], hint=_HINT
            ) from None
        seen.update(zip(wanted[start : start + size], found, strict=True))
    return {name: kind for name, kind in seen.items() if kind is not None}


def _inferred(model: ir.Model, seen: Mapping[str, Type | None]) -> dict[str, Type]:
    """The types that follow from the inputs' sizes as ``seen``, without names or gaps in their shapes."""
    copy = model.clone()
    for value in copy.graph.inputs:
        if (kind := seen.get(str(value.name))) is not None:
            value.shape = ir.Shape(kind.shape)
    for value in (output for node in copy.graph for output in node.outputs):
        if value.shape is not None and not value.shape.is_static():
            value.shape = None
    return {name: kind for name, kind in infer(copy).types.items() if all(isinstance(dim, int) for dim in kind.shape)}


def _types(session: Any, arrays: Mapping[str, Value]) -> list[Type | None]:
    """What the outputs of ``session`` are on ``arrays``; None for one that is no tensor."""
    names = [output.name for output in session.get_outputs()]
    if all(isinstance(array, np.ndarray) and array.dtype != object for array in arrays.values()):
        elements = elements_of(session)
        feeds = {name: to_ort(array, elements.get(name)) for name, array in arrays.items()}
        found = session.run_with_ort_values(names, feeds)
        return [
            Type(ir.DataType(each.element_type()), tuple(each.shape())) if each.is_tensor() else None for each in found
        ]
    # Only a plain run takes texts and sequences, and it gives no tensor of a type that numpy lacks.
    if not elements_of(session).keys().isdisjoint(names):
        return [None] * len(names)
    return [
        Type(_dtype(each), tuple(each.shape)) if isinstance(each, np.ndarray) else None
        for each in call(session, names, arrays, elements_of(session))
    ]


def _dtype(array: Array) -> ir.DataType:
    return ir.DataType.STRING if array.dtype == object else ir.DataType.from_numpy(array.dtype)


def seed_chance() -> None:
    """Let the random operators of sessions that are opened from now on draw the same numbers in every process."""
    ort.set_seed(0)


def first_line(error: Exception) -> str:
    """What ONNX Runtime says, without the code numbers, our own copy and its source lines in front."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    text = _LOADED.sub("", text.rsplit("] : ", 1)[-1].strip())
    return _without_source(text)[:300]


def _without_source(text: str) -> str:
    """``text`` without the place in ONNX Runtime's source, and the signature there, that it may have in front."""
    if (place := _SOURCE.search(text)) is None:
        return text
    depth = 0
    for end in range(place.end() - 1, len(text)):
        depth += {"(": 1, ")": -1}.get(text[end], 0)
        if depth == 0:
            said = text[end + 1 :].removeprefix(" const").strip()
            return f"{text[: place.start()]}{said}" if said else text
    return text


_HINT = "check that the file runs in ONNX Runtime by itself"


def _options(threads: int, optimise: bool, profile: Path | None, folder: str | None) -> ort.SessionOptions:
    """Those of ``open_session``; ``folder``: where weights lie that the model's bytes refer to."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    if folder is not None:
        options.add_session_config_entry(_EXTERNAL_FOLDER, folder)
    return options


@contextmanager
def _runnable(model: ir.Model) -> Iterator[tuple[bytes | str, str | None]]:
    """What ``InferenceSession`` takes for ``model``: bytes, and the folder of weights that they refer to, if any; or
    the path of a file that lives as long as the block.
    """
    copy = model.clone() if has_external(model) else model  # which takes as long as all else where nodes are many
    weights = [value for graph in copy.graphs() for value in graph.initializers.values()]
    tensors = [value.const_value for value in weights if value.const_value is not None]
    stored = [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]
    size = sum(tensor.nbytes for tensor in tensors)
    folder = _folder(stored)
    inline(copy, kept=() if size <= INLINE else set(weights))
    if size <= INLINE:
        yield bytes(ir.to_proto(copy).SerializeToString()), None
    elif folder is not None and size - sum(tensor.nbytes for tensor in stored) <= INLINE:
        yield bytes(ir.to_proto(copy).SerializeToString()), folder
    else:
        with scratch_folder("ruvcompile") as place:
            path = place / "model.onnx"
            ir.save(copy, path, external_data="weights.bin")
            yield str(path), None


def _folder(stored: Collection[ir.ExternalTensor]) -> str | None:
    """The one folder from which ONNX Runtime can map all these tensors; None where there is none."""
    folders = {str(tensor.base_dir) for tensor in stored}
    if len(folders) != 1:
        return None
    (folder,) = folders
    real = Path(folder).resolve()
    within = all(Path(tensor.path).resolve().is_relative_to(real) for tensor in stored)
    return str(real) if within else None
