"""A graph of which an accelerator could take some, and what is made of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from ruvcompile.accelerator import build_parts, plan_parts, target_of
from ruvcompile.options import Options, resolve
from ruvcompile.progress import Silent
from tests.graphs import make_model, tensor, weight

TARGET = "pi5-hailo10h"


def detecting() -> onnx.ModelProto:
    """Convolutions, a reshape to a computed size, and what no accelerator takes: the largest, as integers."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Conv", ["image", "w0"], ["c0"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c0"], ["r0"], name="relu0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Shape", ["c1"], ["s"], name="shape"),
        helper.make_node("Gather", ["s", "zero"], ["batch"], name="batch"),
        helper.make_node("Concat", ["batch", "rest"], ["size"], name="size", axis=0),
        helper.make_node("Reshape", ["c1", "size"], ["flat"], name="flat"),
        helper.make_node("TopK", ["flat", "k"], ["best", "where"], name="topk"),
        helper.make_node("Unsqueeze", ["best", "axis"], ["wide"], name="wide"),
        helper.make_node("MatMul", ["wide", "w2"], ["scores"], name="score"),
    ]
    weights = [
        weight("w0", rng.normal(size=(4, 3, 3, 3))),
        weight("w1", rng.normal(size=(2, 4, 3, 3))),
        weight("w2", rng.normal(size=(5, 3))),
        weight("zero", [0], np.int64),
        weight("rest", [-1], np.int64),
        weight("k", [5], np.int64),
        weight("axis", [1], np.int64),
    ]
    image = tensor("image", ["n", 3, "h", "w"])
    outputs = [tensor("scores", None), tensor("where", None, TensorProto.INT64)]
    return make_model(nodes, [image], outputs, weights, opset=17)


def options(model: Path, output: Path, **flags: Any) -> Options:
    asked = {"model": str(model), "target": TARGET, "output": str(output), "shape": ("image=1x3x8x8",)} | flags
    return resolve(asked, directory=output.parent)


def plan(model: Path, output: Path, **flags: Any) -> dict[str, Any]:
    asked = options(model, output, **flags)
    target = target_of(asked)
    assert target is not None
    return plan_parts(target, asked, Silent())


def build(model: Path, output: Path, **flags: Any) -> dict[str, Any]:
    asked = options(model, output, **flags)
    target = target_of(asked)
    assert target is not None
    return build_parts(target, asked, Silent())
