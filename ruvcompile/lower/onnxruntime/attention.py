"""Attention: one ``GroupQueryAttention`` with rotary, window, scale and cap inside, fed by one stacked projection.

The kernel takes query, key and value as one packed tensor, which is what the stacked projection yields. Where queries
and keys are normed head by head in between, the stacked tensor is split first: the kernel that norms them itself
exists only for graphics cards. A layer that rotates nothing tells the kernel so. A window is counted here from the
token itself on, in the standard from the one before it.
"""

from __future__ import annotations

import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvcompile.lower.edit import Edit, integer
from ruvcompile.lower.projections import stack
from ruvcompile.passes.edit import made_by, replace_value

HEAD_MULTIPLE = 16
"""The kernel wants heads, and what is rotated of them, in multiples of so many channels."""


def attend(edit: Edit, node: ir.Node, seqlens: ir.Value, total: ir.Value) -> None:
    """Rewrite one canonical ``Attention`` (rules 2 and 3)."""
    ropes = [made_by(value, "RotaryEmbedding") for value in node.inputs[:2]]
    query, key = (value if rope is None else rope.inputs[0] for value, rope in zip(node.inputs[:2], ropes, strict=True))
    operands, projections = _project(edit, node, [query, key, node.inputs[2]])
    rope = ropes[0]
    tables = _tables(rope) if rope is not None else []
    attended = edit.add(
        node,
        "GroupQueryAttention",
        [*operands, node.inputs[4], node.inputs[5], seqlens, total, *tables],
        ["attended", "key", "value"],
        name=str(node.name),
        attributes=_attributes(node, rope),
    )
    for old, new in zip(node.outputs, attended, strict=False):
        replace_value(old, new)
    edit.remove(node, *ropes, *projections)


def _project(
    edit: Edit, node: ir.Node, operands: list[ir.Value | None]
) -> tuple[list[ir.Value | None], list[ir.Node | None]]:
    """Query, key and value as the kernel takes them, and the projections that may have become superfluous."""
    splits = [_split_by_head(each) for each in operands]
    sources = [each if split is None else split.inputs[0] for each, split in zip(operands, splits, strict=True)]
    projections = [made_by(source, "MatMulNBits") for source in sources]
    path = str(node.name).rsplit("/", 1)[0]
    # Where queries are normed, the first of the reshapes is the first to read any projection.
    packed = stack(edit, projections, f"{path}/qkv_proj", before=splits[0] or node)
    if packed is None:
        return operands, []
    if splits[0] is None:
        return [packed, None, None], projections
    widths = [integer(each, "N") for each in projections if each is not None]
    parts = edit.split(splits[0], packed, widths, ["query", "key", "value"], name=f"{path}/qkv_split", kind="qkv")
    for source, part in zip(sources, parts, strict=True):
        assert source is not None
        replace_value(source, part)
    return [*operands[:2], parts[2]], projections


def _split_by_head(value: ir.Value | None) -> ir.Node | None:
    """The first node of a norm by head (``Reshape``, ``RMSNormalization``, ``Reshape``) that made ``value``."""
    together = made_by(value, "Reshape")
    norm = made_by(together.inputs[0], "RMSNormalization") if together is not None else None
    return made_by(norm.inputs[0], "Reshape") if norm is not None else None


def _tables(rope: ir.Node) -> list[ir.Value | None]:
    cosines = rope.inputs[1]
    assert cosines is not None and cosines.shape is not None
    rotated = 2 * int(cosines.shape[1])  # type: ignore[arg-type]  # a weight's shape is known
    if rotated % HEAD_MULTIPLE:
        raise InputError(
            "rotary-size",
            f"{rotated} channels of each head are rotated; ONNX Runtime's kernel wants a multiple of {HEAD_MULTIPLE}",
            hint="use a model of another head size",
        )
    return [cosines, rope.inputs[2]]


def _attributes(node: ir.Node, rope: ir.Node | None) -> dict[str, int | float]:
    attributes: dict[str, int | float] = {
        "num_heads": integer(node, "q_num_heads"),
        "kv_num_heads": integer(node, "kv_num_heads"),
        "do_rotary": int(rope is not None),
        "rotary_interleaved": integer(rope, "interleaved") if rope is not None else 0,
    }
    for name in ("scale", "softcap"):
        if name in node.attributes:
            attributes[name] = node.attributes[name].as_float()
    if "left_window_size" in node.attributes:
        attributes["local_window_size"] = integer(node, "left_window_size") + 1
    return attributes
