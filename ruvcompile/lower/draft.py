"""What a lowering is given, and what it gives back.

A lowering is a module with a function ``write(Draft) -> Written``: it turns a piece of the program, cut out and in
canonical form, into files that one back end's executor loads. ``stage.LOWERINGS`` names the module of each back end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.weights import WeightStore
from ruvcompile.program import Piece, Program
from ruvrun.backends import KV_TYPES
from ruvrun.bundle import File, StageSpec, State
from ruvrun.manifest import KvType, Tensor
from ruvrun.profile.sheet import Sheet


def kv_type_of(spec: StageSpec) -> str:
    """The type of a stage's keys and values, to write another like it."""
    return next((name for name, dtype in KV_TYPES.items() if spec.kv is not None and spec.kv.dtype == dtype), "f32")


@dataclass(frozen=True)
class Draft:
    """A stage before it is lowered.

    Attributes:
        program: what it is a piece of; not changed.
        piece: which piece.
        model: the piece cut out, the lowering's own to change. A decoder's has its past, and what positions decide,
            as inputs too, and its present as outputs.
        past, present: names of a decoder's state in ``model``.
        directory: where the files go; it is there.
        store: where its weights are.
        keyed: the program's units, if a sheet is wanted.
        kv_type: of a decoder's keys and values, as asked for.
        passing: the stage is for ourselves and soon gone (``WeightStore.place``).
    """

    program: Program
    piece: Piece
    model: ir.Model
    past: Sequence[str]
    present: Sequence[str]
    directory: Path
    store: WeightStore
    keyed: Keyed | None
    kv_type: str
    passing: bool

    @property
    def canonical(self) -> bool:
        """Whether it is of a decoder in canonical form: not of another graph, nor of one that is run as exported."""
        return self.program.decoder is not None and not self.program.decoder.exported


@dataclass(frozen=True)
class Written:
    """A lowered stage.

    Attributes:
        model: the file that the executor opens.
        inputs, outputs: what travels, in the order of the piece's own.
        files: all that was written, hashed, but for the sheet.
        sheet: which nodes are which unit, where the draft has ``keyed``.
        kv_type: of keys and values.
        state: of a decoder that keeps it in plain tensors.
        options: the back end's settings that decide what is computed.
        requires: the least versions of the back end and of what it needs on a node.
    """

    model: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    files: list[File]
    sheet: Sheet | None
    kv_type: KvType = "float32"
    state: list[State] = field(default_factory=list)
    options: Mapping[str, str] = field(default_factory=dict)
    requires: Mapping[str, str] = field(default_factory=dict)
