"""The graphs that predictions are checked on: a text detector, and two light networks of the onnx package."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import onnx
from harness import CACHE
from onnx import numpy_helper

OCR = "ppocr-det"
LIGHT = ("squeezenet", "resnet50")
_DETECTOR = CACHE.parent / "models" / "ch_PP-OCRv4_det_infer.onnx"
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def write_graphs(folder: Path) -> dict[str, tuple[Path, Path, list[str]]]:
    """For every graph its file, a file with its input, and what else a build of it needs to be told."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    shape = [1, 3, 320, 320]
    np.savez(folder / f"{OCR}.npz", x=draw.standard_normal(shape, np.float32))
    found = {OCR: (_DETECTOR, folder / f"{OCR}.npz", ["--shape", "x=" + "x".join(map(str, shape))])}
    for name in LIGHT:
        model = _drawn(_FOLDER / f"light_{name}.onnx")
        onnx.save(model, folder / f"{name}.onnx")
        (taken,) = model.graph.input
        shape = [dim.dim_value for dim in taken.type.tensor_type.shape.dim]
        np.savez(folder / f"{name}.npz", **{taken.name: draw.standard_normal(shape, np.float32)})
        found[name] = (folder / f"{name}.onnx", folder / f"{name}.npz", [])
    return found


def _drawn(path: Path) -> onnx.ModelProto:
    """The network with weights drawn at random where the package makes them by ConstantOfShape."""
    model = onnx.load(path)
    graph, draw = model.graph, np.random.default_rng(0)
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = {node.output[0]: node for node in graph.node if node.op_type == "ConstantOfShape"}
    for name, node in makers.items():
        graph.node.remove(node)
        shape = [int(size) for size in stored[node.input[0]]]
        # Matrices keep the size of what passes through them; scales, variances and the like are near one.
        wide = draw.standard_normal(shape, np.float32) * np.float32((2 / math.prod(shape[1:])) ** 0.5)
        values = wide if len(shape) > 1 else draw.uniform(0.5, 1.5, shape).astype(np.float32)
        graph.initializer.append(numpy_helper.from_array(values, name))
    read = {name for node in graph.node for name in node.input}
    for tensor in [tensor for tensor in graph.initializer if tensor.name not in read]:
        graph.initializer.remove(tensor)  # the shapes of the weights that were made
    taken = [value for value in graph.input if value.name not in stored]
    del graph.input[:]
    graph.input.extend(taken)
    model.ir_version = 4  # from here on a weight need not be an input
    return model
