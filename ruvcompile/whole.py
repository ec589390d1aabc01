"""The whole model, run in one piece by ONNX Runtime: the truth that every cut is held against.

A model that was loaded and put into canonical form exists in memory only, with its weights mapped or still to
be computed. Small ones are handed to ONNX Runtime as bytes. Above ``INLINE`` the weights are written once to a
temporary folder and mapped from there; the folder is gone when the session is open.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx_ir as ir
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from ruvcompile.errors import InputError
from ruvcompile.passes.infer import Type
from ruvcompile.passes.scope import all_nodes
from ruvrun.executors import Array

INLINE = 64 << 20
"""Bytes of weights up to which a model is handed over in memory, where it stands several times while it loads."""

ERRORS: tuple[type[Exception], ...] = tuple(
    kind for kind in vars(_state).values() if isinstance(kind, type) and issubclass(kind, Exception)
)
"""What ONNX Runtime raises: fifteen classes without a common base."""

REFUSALS: tuple[type[Exception], ...] = (*ERRORS, ValueError)
"""And for inputs that do not fit, which it checks in Python."""

_PIECE = 256
_DTYPES = {
    **{name: name.upper() for name in ("bool", "int8", "int16", "int32", "int64", "float", "double")},
    **{name: name.upper() for name in ("uint8", "uint16", "uint32", "uint64", "float16", "bfloat16")},
}


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
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    if not optimise:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    if profile is not None:
        options.enable_profiling = True
        options.profile_file_prefix = str(profile)
    try:
        with _runnable(model) as source:
            return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    except ERRORS as error:
        raise InputError(
            "model-does-not-load", "ONNX Runtime does not load this model", context=[first_line(error)], hint=_HINT
        ) from None


def run(session: Any, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The outputs of one run, by name.

    Raises:
        InputError: ``model-does-not-run``: these inputs do not fit the graph.
    """
    names = [output.name for output in session.get_outputs()]
    try:
        return dict(zip(names, session.run(names, dict(arrays)), strict=True))
    except REFUSALS as error:
        raise InputError(
            "model-does-not-run",
            "the model does not run on these inputs",
            context=[first_line(error)],
            hint="give inputs that fit with --inputs, or their sizes with --shape",
        ) from None


def run_whole(model: ir.Model, arrays: Mapping[str, Array], *, threads: int = 0) -> dict[str, Array]:
    """Open a session of ``model`` and run it once."""
    return run(open_session(model, threads=threads), arrays)


def observe(model: ir.Model, arrays: Mapping[str, Array], names: Collection[str] | None = None) -> dict[str, Type]:
    """The types of the top-level values of ``model``, graph inputs too, as a run on ``arrays`` shows them.

    Args:
        model: not changed.
        arrays: the graph's inputs.
        names: values to look at; all by default. Those that are no tensors are left out of the result.
    """
    seen = {name: Type(ir.DataType.from_numpy(array.dtype), tuple(array.shape)) for name, array in arrays.items()}
    made = [value.name for node in model.graph for value in node.outputs if value.name]
    wanted = [name for name in made if names is None or name in names]
    for start in range(0, len(wanted), _PIECE):
        piece = model.clone()
        values = {value.name: value for node in piece.graph for value in node.outputs}
        # Only these are outputs: every one is a name of its own, and none of the graph's needs to be run for.
        piece.graph.outputs[:] = [values[name] for name in wanted[start : start + _PIECE]]
        session = open_session(piece, optimise=False)
        feeds = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
        try:
            found = session.run_with_ort_values([output.name for output in session.get_outputs()], feeds)
        except ERRORS as error:
            raise InputError(
                "model-does-not-run", "the model does not run on these inputs", context=[first_line(error)], hint=_HINT
            ) from None
        for output, value in zip(session.get_outputs(), found, strict=True):
            if value.is_tensor() and (dtype := _DTYPES.get(value.data_type()[len("tensor(") : -1])):
                seen[output.name] = Type(ir.DataType[dtype], tuple(value.shape()))
    return seen


def first_line(error: Exception) -> str:
    """What ONNX Runtime says, without the code numbers in front."""
    text = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text.rsplit("] : ", 1)[-1].strip()[:300]


_HINT = "check that the file runs in ONNX Runtime by itself"


@contextmanager
def _runnable(model: ir.Model) -> Iterator[bytes | str]:
    """What ``InferenceSession`` takes for ``model``: bytes, or the path of a file that lives as long as the block."""
    copy = model.clone()
    _inline_constants(copy)
    if sum(tensor.nbytes for tensor in _tensors(copy)) <= INLINE:
        _inline(copy)
        yield bytes(ir.to_proto(copy).SerializeToString())
        return
    with tempfile.TemporaryDirectory(prefix="ruvcompile-") as folder:
        path = Path(folder) / "model.onnx"
        ir.save(copy, path, external_data="weights.bin")
        yield str(path)


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        yield from (value.const_value for value in graph.initializers.values() if value.const_value is not None)


def _inline(model: ir.Model) -> None:
    """Take the data of external tensors into ``model`` itself, which is a copy of our own."""
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = _in_memory(value.const_value)


def _inline_constants(model: ir.Model) -> None:
    scopes = [model.graph, *model.functions.values()]
    for node in (node for scope in scopes for node in all_nodes(scope)):
        for name, attribute in node.attributes.items():
            if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                node.attributes[name] = ir.AttrTensor(name, _in_memory(attribute.value))


def _in_memory(tensor: ir.ExternalTensor) -> ir.Tensor[Any]:
    return ir.Tensor(tensor.numpy(), dtype=tensor.dtype, name=tensor.name)
