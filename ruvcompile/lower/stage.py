"""A piece of the program, lowered for a back end and written where an executor can load it.

The same function writes the stage of a bundle, the whole decoder that is measured, and the uncut model that
``verify`` compares with: what is measured and checked is what will run.

What all back ends share is here: the piece is cut out of the program, its state is found, and ``bundle.toml`` is
written. The rest is the back end's own lowering, which is imported when it is asked for (``LOWERINGS``).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import onnx_ir as ir

import ruvrun
from ruvcompile.errors import InputError, did_you_mean
from ruvcompile.lower.draft import Draft, Written
from ruvcompile.lower.files import hashed
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.extract import extract
from ruvcompile.passes.infer import Type
from ruvcompile.passes.scope import reads
from ruvcompile.program import Piece, Program
from ruvrun.backends import package_of
from ruvrun.bundle import BUNDLE, StageSpec
from ruvrun.manifest import PROTOCOL, KeyValue, KvType, Tensor, dump_toml
from ruvrun.profile.sheet import UNITS

LOWERINGS = {
    "onnxruntime": "ruvcompile.lower.onnxruntime.bundle",
    "openvino": "ruvcompile.lower.openvino.bundle",
    "openvino-gpu": "ruvcompile.lower.openvino.gpu",
    "openvino-npu": "ruvcompile.lower.openvino.npu",
    "reference": "ruvcompile.lower.reference",
}
"""Of each back end, the module whose ``write`` lowers a stage for it."""


def write_stage(
    program: Program,
    piece: Piece,
    directory: Path,
    store: WeightStore,
    *,
    backend: str,
    target: str,
    types: Mapping[str, Type] | None = None,
    passing: bool = False,
    keyed: Keyed | None = None,
    kv_type: str = "f32",
    link_type: str = "f32",
) -> StageSpec:
    """Lower ``piece`` and write its graph, weights and ``bundle.toml`` into ``directory``.

    Args:
        keyed: the program's units, so that the stage can be measured wherever it lies (``units.toml``).
        kv_type: of a decoder's keys and values: ``f32``, ``f16`` or ``u8``, as the back end allows.
        link_type: what a decoder's activations are rounded to on links, ``f32`` (not at all) or ``f16``.
        passing: the stage is for ourselves and soon gone (``WeightStore.place``).

    Returns:
        The stage's spec, without a golden check (see ``add_golden``).

    Raises:
        InputError: the back end is unknown or not installed, or has no way to run this.
    """
    lowering = _lowering(backend)
    directory.mkdir(parents=True, exist_ok=True)
    decoder = program.decoder
    nodes = _nodes(program.model, piece) if decoder is not None else []
    past, filled, present = _state(nodes, piece)
    # Positions (and a mask) are inputs too; the lowering of the canonical form takes them away again.
    inputs, outputs = [*piece.inputs, *past, *filled], [*piece.outputs, *present]
    # The model's name for people is no part of what a stage is: its bytes stay the same under another.
    model = extract(program.model, piece.nodes, inputs=inputs, outputs=outputs, name="stage", types=types)
    draft = Draft(program, piece, model, past, present, directory, store, keyed, kv_type, passing)
    written: Written = lowering.write(draft)
    files = list(written.files)
    if written.sheet is not None:
        (directory / UNITS).write_bytes(dump_toml(written.sheet))
        files.append(hashed(directory, UNITS))
    spec = StageSpec(
        kind="decoder" if decoder is not None else "graph",
        backend=backend,
        target=target,
        model=written.model,
        first=piece.first,
        last=piece.last,
        inputs=_travelling(written.inputs, link_type),
        outputs=written.outputs if piece.last else _travelling(written.outputs, link_type),
        forward=list(piece.forward),
        files=files,
        requires={"protocol": str(PROTOCOL), "ruvrun": ruvrun.__version__, **written.requires},
        options=dict(written.options),
        kv=_key_value(program, len(past) // 2, written.kv_type),
        vocab=decoder.vocab if decoder is not None else 0,
        exported=decoder is not None and decoder.exported,
        state=written.state,
    )
    (directory / BUNDLE).write_bytes(dump_toml(spec))
    return spec


def _lowering(backend: str) -> Any:
    if backend not in LOWERINGS:
        raise InputError("lowering-unknown", f"unknown back end {backend!r}", hint=did_you_mean(backend, LOWERINGS))
    try:
        return importlib.import_module(LOWERINGS[backend])
    except ImportError as error:
        raise InputError(
            "backend-missing",
            f"{backend} is not installed here, so nothing can be built for it",
            context=[str(error)],
            hint=f"pip install 'ruvcompile[{package_of(backend)}]'",
        ) from None


def _travelling(tensors: Sequence[Tensor], link_type: str) -> list[Tensor]:
    """Activations with the type that they have on links."""
    return [
        msgspec.structs.replace(each, wire="float16") if link_type == "f16" and each.dtype == "float32" else each
        for each in tensors
    ]


def _nodes(model: ir.Model, piece: Piece) -> list[ir.Node]:
    wanted = set(piece.nodes)
    return [node for node in model.graph if node.name in wanted]


def _state(nodes: Sequence[ir.Node], piece: Piece) -> tuple[list[str], list[str], list[str]]:
    """What a decoder's nodes read that is not sent to them, and keep: past, what positions decide, and present."""
    read = dict.fromkeys(value for node in nodes for value in reads(node) if value.is_graph_input())
    hidden = [str(value.name) for value in read if value.name not in piece.inputs]
    past = [name for name in hidden if name.startswith("past_")]
    made = (value for node in nodes for value in node.outputs if value.is_graph_output())
    present = [str(value.name) for value in made if str(value.name).startswith("present_")]
    return past, [name for name in hidden if name not in past], present


def _key_value(program: Program, layers: int, dtype: KvType) -> KeyValue | None:
    decoder = program.decoder
    if decoder is None:
        return None
    return KeyValue(layers=layers, heads=decoder.kv_heads, head_size=decoder.head_size, dtype=dtype)


__all__ = ["hashed", "write_stage"]
