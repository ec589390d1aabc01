"""The nine light networks of the onnx package, with weights that tell one result from another.

The package ships well-known topologies whose weights are constant, most of them made by ConstantOfShape: every
channel of every layer computes the same, and a mistake would not show. Here each gets weights drawn at random, the
same ones every time, scaled by what they are for so that activations neither vanish nor overflow on the way down.
"""

from __future__ import annotations

import math
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, numpy_helper

SMALL = ("squeezenet", "shufflenet", "inception_v1")
LARGE = ("densenet121", "inception_v2", "resnet50", "bvlc_alexnet", "zfnet512", "vgg19")
_FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
_SHAPED = ("Unsqueeze", "Reshape")
_GAINS = {"inception_v1": 15.0, "inception_v2": 0.1, "shufflenet": 3e-5, "resnet50": 5e-4, "bvlc_alexnet": 0.5}
"""Of the last layer, so that the Softmax behind it chooses neither one class nor all alike."""


def write_light(name: str, folder: Path) -> Path:
    """Write network ``name`` with random weights to ``folder``, weights beside the graph, and return its path."""
    model = onnx.load(_FOLDER / f"light_{name}.onnx")
    graph = model.graph
    stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
    makers = [node for node in graph.node if node.op_type == "ConstantOfShape"]
    shapes = {node.output[0]: tuple(map(int, stored[node.input[0]])) for node in makers}
    readers = {value: (node, at) for node in reversed(graph.node) for at, value in enumerate(node.input)}
    shapes |= {key: array.shape for key, array in stored.items() if array.dtype == np.float32 and key in readers}
    last = [node.input[1] for node in graph.node if node.op_type in ("Conv", "Gemm")][-1]
    kept = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    tensors = [tensor for tensor in graph.initializer if tensor.name not in shapes]
    with (folder / f"{name}.bin").open("wb") as data:
        for key, shape in shapes.items():
            node, at = readers[key]
            while node.op_type in _SHAPED:
                node, at = readers[node.output[0]]
            weight = TensorProto(name=key, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
            place = {"location": data.name.rsplit("/", 1)[-1], "offset": data.tell(), "length": 4 * math.prod(shape)}
            for field, value in place.items():
                weight.external_data.add(key=field, value=str(value))
            values = _drawn(key, node.op_type, at, shape)
            data.write((values * np.float32(_GAINS.get(name, 1.0)) if node.input[at] == last else values).tobytes())
            tensors.append(weight)
    del graph.node[:], graph.initializer[:]
    graph.node.extend(kept)
    graph.initializer.extend(tensors)
    inputs = [value for value in graph.input if value.name not in stored]
    del graph.input[:]
    graph.input.extend(inputs)
    model.ir_version = 4  # from here on a weight need not be an input
    path = folder / f"{name}.onnx"
    onnx.save(model, path)
    return path


def _drawn(key: str, operator: str, at: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    random = np.random.default_rng(zlib.crc32(key.encode()))
    values = random.standard_normal(shape, np.float32)
    if at == 1 and operator in ("Conv", "Gemm"):
        return values * np.float32(math.sqrt(2 / math.prod(shape[1:])))
    scales = (operator, at) in {("BatchNormalization", 1), ("BatchNormalization", 4), ("Mul", 1)}
    return np.exp(0.2 * values) if scales else 0.1 * values
