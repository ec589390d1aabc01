"""Small graphs through the front door: built in stages, and held against ONNX Runtime on the very file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ruvrun.bundle import StageSpec
from ruvrun.pipeline import open_local
from tests.compiler.builds import build, check_whole
from tests.graphs import Array, assert_equal, run_original, tensor

X = np.arange(6, dtype=np.float32).reshape(2, 3) - 2


def built(model: onnx.ModelProto, folder: Path, **flags: Any) -> tuple[dict[str, Any], list[StageSpec], list[Path]]:
    """What a build of ``model`` in two stages says, its stages, and where each lies."""
    onnx.save(model, folder / "net.onnx")
    result = build(folder / "net.onnx", folder / "dist", **flags)
    manifest, specs = check_whole(folder / "dist")
    return result, specs, [folder / "dist" / "bundles" / each.node for each in manifest.pipeline[0].stages]


def check_cut(
    model: onnx.ModelProto, folder: Path, cut: str, cases: Sequence[Mapping[str, Array]], **flags: Any
) -> list[StageSpec]:
    """Cut ``model`` at the tensors ``cut``; the stages give what the whole gives. Each is a sound model by itself."""
    _, specs, directories = built(model, folder, cut=cut, **flags)
    assert set(specs[0].forward) >= set(cut.split(","))
    for spec, directory in zip(specs, directories, strict=True):
        onnx.checker.check_model(directory / spec.model)
    pipeline = open_local(folder / "dist" / "manifest.toml")
    for arrays in cases:
        assert_equal(pipeline.run(dict(arrays)), run_original(model, arrays))
    return specs


def nodes_of(path: Path) -> Sequence[onnx.NodeProto]:
    return onnx.load(path, load_external_data=False).graph.node


def branches(nodes_then: Sequence[onnx.NodeProto], nodes_else: Sequence[onnx.NodeProto]) -> dict[str, onnx.GraphProto]:
    """The attributes of an If whose branches end in ``t`` and ``e``, both 2 x 3."""
    return {
        "then_branch": helper.make_graph(list(nodes_then), "then", [], [tensor("t", [2, 3])]),
        "else_branch": helper.make_graph(list(nodes_else), "else", [], [tensor("e", [2, 3])]),
    }


FLAG = tensor("flag", [], TensorProto.BOOL)
BOTH = [{"x": X, "flag": np.array(flag)} for flag in (True, False)]
