"""The bytes of a small ONNX model, written without the onnx package, which no node has.

A model is one message of Protocol Buffers: each field is a key, which is its number and how it is coded, and a value.
Of the format (``onnx.proto`` of ONNX, IR version 10) only what ``rates`` needs is here: nodes with numbers as
attributes, float inputs and outputs, weights in a file beside the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

FLOAT, UINT8 = 1, 2
IR_VERSION, OPSET = 10, 21
MS_DOMAIN = "com.microsoft"

_VARINT, _BYTES = 0, 2
_INTEGER = 2  # AttributeProto.INT
_EXTERNAL = 1  # TensorProto.EXTERNAL
Shape = Sequence[int | str]


@dataclass(frozen=True)
class Node:
    """One operator; a domain other than the standard one makes it a contrib one."""

    op: str
    inputs: Sequence[str]
    output: str
    domain: str = ""
    attributes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Weight:
    """A tensor that lies in a file: ``kind`` is its element type, ``offset`` and ``length`` where it is."""

    name: str
    kind: int
    shape: Sequence[int]
    file: str
    offset: int
    length: int


def model_bytes(
    nodes: Sequence[Node], inputs: Mapping[str, Shape], outputs: Mapping[str, Shape], weights: Sequence[Weight]
) -> bytes:
    """A model of float inputs and outputs; a dimension that is a text is open."""
    graph = b"".join(
        (
            *(_bytes(1, _node(node, number)) for number, node in enumerate(nodes)),
            _text(2, "rates"),
            *(_bytes(5, _tensor(weight)) for weight in weights),
            *(_bytes(11, _value(name, shape)) for name, shape in inputs.items()),
            *(_bytes(12, _value(name, shape)) for name, shape in outputs.items()),
        )
    )
    opsets = (("", OPSET), (MS_DOMAIN, 1))
    imports = (_bytes(8, _text(1, domain) + _number(2, version)) for domain, version in opsets)
    return _number(1, IR_VERSION) + _bytes(7, graph) + b"".join(imports)


def _node(node: Node, number: int) -> bytes:
    attributes = (
        _bytes(5, _text(1, name) + _number(3, value) + _number(20, _INTEGER)) for name, value in node.attributes.items()
    )
    inputs = b"".join(_text(1, name) for name in node.inputs)
    named = _text(2, node.output) + _text(3, f"{node.op}_{number}") + _text(4, node.op)
    return inputs + named + b"".join(attributes) + _text(7, node.domain)


def _tensor(weight: Weight) -> bytes:
    where = {"location": weight.file, "offset": str(weight.offset), "length": str(weight.length)}
    return b"".join(
        (
            *(_number(1, size) for size in weight.shape),
            _number(2, weight.kind),
            _text(8, weight.name),
            *(_bytes(13, _text(1, key) + _text(2, value)) for key, value in where.items()),
            _number(14, _EXTERNAL),
        )
    )


def _value(name: str, shape: Shape) -> bytes:
    axes = (_bytes(1, _text(2, size) if isinstance(size, str) else _number(1, size)) for size in shape)
    tensor = _number(1, FLOAT) + _bytes(2, b"".join(axes))
    return _text(1, name) + _bytes(2, _bytes(1, tensor))


def _number(key: int, value: int) -> bytes:
    return _varint(key << 3 | _VARINT) + _varint(value)


def _text(key: int, value: str) -> bytes:
    return _bytes(key, value.encode())


def _bytes(key: int, value: bytes) -> bytes:
    return _varint(key << 3 | _BYTES) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    assert value >= 0
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
