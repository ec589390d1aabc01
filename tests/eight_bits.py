"""Graphs in 8 bits, in every form that ONNX has for a product of unsigned activations and signed weights.

Activations and weights are large, so that the sum of two products of neighbours does not fit into 16 bits. Each graph
is there with unsigned weights too, 128 more and with a zero point of 128 more: kernels for those are exact on any CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper

from tests.graphs import make_model, tensor, weight

MS = "com.microsoft"
WIDTH, ROWS, SIDE = 16, 4, 2
"""A layer's input and output ``[ROWS, WIDTH]``; a convolution sees it as ``[1, WIDTH, SIDE, SIDE]``."""

MATRICES = ("qdq", "qdq to float", "qdq gemm", "dynamic", "dynamic fused", "QLinearMatMul", "QGemm", "to float")
CONVOLUTIONS = ("qdq conv", "QLinearConv")
FORMS = (*MATRICES, *CONVOLUTIONS)
WITHOUT_ZERO = frozenset({"qdq", "qdq to float", "qdq gemm", "qdq conv", "dynamic", "dynamic fused", "to float"})
"""Those of which the weight's zero point may be left out."""

_ACTIVATION, _WEIGHT = 0.012, 0.0015


@dataclass(frozen=True)
class Layer:
    """A product: its form, the numbers of its weight and of its zero point (of equal ones there is one in the graph;
    no zero point where None), and whether each channel has its own scale.
    """

    form: str
    weight: int = 0
    zero: int | None = 0
    channels: bool = False


def graph(layers: Sequence[Layer], *, unsigned: bool = False, opset: int = 18) -> onnx.ModelProto:
    """x -> layer -> ... -> y, all floats ``[ROWS, WIDTH]``."""
    drawing = _Drawing(unsigned)
    value = "x"
    for number, layer in enumerate(layers):
        value = drawing.add(value, number, layer)
    drawing.node("Identity", [value], ["y"])
    ports = [tensor("x", [ROWS, WIDTH])], [tensor("y", [ROWS, WIDTH])]
    weights = list(drawing.weights.values())
    return make_model(drawing.nodes, *ports, weights, opset=opset, domains={MS: 1})


def arrays(seed: int = 0) -> dict[str, npt.NDArray[np.float32]]:
    """Inputs most of which are quantised to large numbers."""
    return {"x": np.random.default_rng(seed).uniform(1, 3.5, (ROWS, WIDTH)).astype(np.float32)}


class _Drawing:
    def __init__(self, unsigned: bool) -> None:
        self.unsigned = unsigned
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}
        self.put("a", np.array(_ACTIVATION, np.float32))
        self.put("z", np.array(3, np.uint8))
        self.put("rows", np.array([ROWS, WIDTH]))
        self.put("image", np.array([1, WIDTH, SIDE, SIDE]))

    def node(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        self.nodes.append(helper.make_node(kind, inputs, outputs, **attributes))

    def put(self, name: str, array: npt.NDArray[Any]) -> str:
        """A weight; of an int8 one the unsigned one where those are drawn."""
        if array.dtype == np.int8 and self.unsigned:
            array = (array.astype(np.int16) + 128).astype(np.uint8)
        self.weights[name] = weight(name, array, array.dtype)
        return name

    def add(self, value: str, number: int, layer: Layer) -> str:
        """Draw one layer that reads ``value``; the name of what it makes."""
        form, conv = layer.form, layer.form in CONVOLUTIONS
        kernel = self.put(f"w{layer.weight}{'c' if conv else ''}", _kernel(layer.weight, conv))
        shape = [WIDTH] if layer.channels else []
        scale = self.put(f"s{len(shape)}", np.full(shape, _WEIGHT, np.float32))
        zero = ""
        if layer.zero is not None or self.unsigned or form not in WITHOUT_ZERO:
            zero = self.put(f"n{layer.zero}.{len(shape)}", np.zeros(shape, np.int8))
        image = value
        if conv:
            image = f"{number}.image"
            self.node("Reshape", [value, "image"], [image])
        made = getattr(self, _METHODS[form])(f"{number}.", image, kernel, scale, zero, layer)
        if not conv:
            return str(made)
        self.node("Reshape", [made, "rows"], [f"{number}.rows"])
        return f"{number}.rows"

    def quantised(self, name: str, value: str) -> str:
        self.node("QuantizeLinear", [value, "a", "z"], [f"{name}q"])
        return f"{name}q"

    def dequantised(self, name: str, value: str) -> str:
        self.node("DequantizeLinear", [value, "a", "z"], [f"{name}d"])
        return f"{name}d"

    def qdq(self, name: str, value: str, kernel: str, scale: str, zero: str, layer: Layer) -> str:
        conv = layer.form in CONVOLUTIONS
        given = self.dequantised(name, self.quantised(name, value))
        inputs = [kernel, scale, zero] if zero else [kernel, scale]
        self.node("DequantizeLinear", inputs, [f"{name}w"], **({"axis": 1 - conv} if layer.channels else {}))
        kind = "Conv" if conv else "Gemm" if layer.form == "qdq gemm" else "MatMul"
        self.node(kind, [given, f"{name}w"], [f"{name}m"], **({"pads": [1] * 4} if conv else {}))
        if layer.form == "qdq to float":
            return f"{name}m"
        return self.dequantised(f"{name}m", self.quantised(f"{name}m", f"{name}m"))

    def dynamic(self, name: str, value: str, kernel: str, scale: str, zero: str, _: Layer) -> str:
        self.node("DynamicQuantizeLinear", [value], [f"{name}q", f"{name}s", f"{name}z"])
        inputs = [f"{name}q", kernel, f"{name}z", *([zero] if zero else [])]
        self.node("MatMulInteger", inputs, [f"{name}i"])
        self.node("Cast", [f"{name}i"], [f"{name}f"], to=TensorProto.FLOAT)
        self.node("Mul", [f"{name}s", scale], [f"{name}t"])
        self.node("Mul", [f"{name}f", f"{name}t"], [f"{name}m"])
        return f"{name}m"

    def dynamic_fused(self, name: str, value: str, kernel: str, scale: str, zero: str, _: Layer) -> str:
        inputs = [value, kernel, scale, *([zero] if zero else [])]
        self.node("DynamicQuantizeMatMul", inputs, [f"{name}m"], domain=MS)
        return f"{name}m"

    def to_float(self, name: str, value: str, kernel: str, scale: str, zero: str, _: Layer) -> str:
        inputs = [self.quantised(name, value), kernel, "a", scale, "z", *([zero] if zero else [])]
        self.node("MatMulIntegerToFloat", inputs, [f"{name}m"], domain=MS)
        return f"{name}m"

    def qlinear(self, name: str, value: str, kernel: str, scale: str, zero: str, layer: Layer) -> str:
        inputs = [self.quantised(name, value), "a", "z", kernel, scale, zero, "a", "z"]
        attributes = {"pads": [1] * 4} if layer.form == "QLinearConv" else {}
        self.node(layer.form, inputs, [f"{name}m"], **attributes)
        return self.dequantised(f"{name}m", f"{name}m")

    def qgemm(self, name: str, value: str, kernel: str, scale: str, zero: str, _: Layer) -> str:
        inputs = [self.quantised(name, value), "a", "z", kernel, scale, zero]
        self.node("QGemm", inputs, [f"{name}m"], domain=MS)
        return f"{name}m"


_METHODS = {
    **dict.fromkeys(("qdq", "qdq to float", "qdq gemm", "qdq conv"), "qdq"),
    "dynamic": "dynamic",
    "dynamic fused": "dynamic_fused",
    "to float": "to_float",
    "QGemm": "qgemm",
    **dict.fromkeys(("QLinearMatMul", "QLinearConv"), "qlinear"),
}


def _kernel(number: int, conv: bool) -> npt.NDArray[np.int8]:
    """Large numbers, neighbours mostly of one sign."""
    random = np.random.default_rng(number)
    shape = (WIDTH, WIDTH, 3, 3) if conv else (WIDTH, WIDTH)
    signs = np.where(random.random((WIDTH // 4, WIDTH)) < 0.55, 1, -1).repeat(4, 0)
    signs = signs.T[:, :, None, None] if conv else signs
    return (random.integers(90, 128, shape) * signs).astype(np.int8)
