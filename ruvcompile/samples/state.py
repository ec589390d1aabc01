"""State that a graph hands to its caller: an output that goes in again with the next call.

Links and stages keep nothing of it: it enters and leaves like any other tensor, in whatever cut, and the caller
feeds it back. What can be done for him is to say which output belongs to which input. They are told by name
(``state`` and ``stateN``, ``h0`` and ``hn``, ``cache_in`` and ``cache_out``, ``past.0.key`` and ``present.0.key``) and
by being of one type and, as far as it is known, of one shape.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from ruvcompile.samples.conventions import looks_like_state

_AFFIXES = re.compile(
    r"past|present|key_values|new|next|updated|(?:^|[._])(?:in|out|input|output|initial|final)(?=$|[._])|_?[n0]$|[._]",
    re.IGNORECASE,
)


def state_pairs(graph: ir.Graph) -> list[tuple[str, str]]:
    """Names of state inputs, each with the output that is its next value; only where there is no doubt."""
    entering = _by_stem([value for value in graph.inputs if looks_like_state(str(value.name))])
    leaving = _by_stem([value for value in graph.outputs if not value.is_graph_input()])
    found = []
    for stem, values in entering.items():
        others = leaving.get(stem, [])
        if stem and len(values) == len(others) == 1 and _alike(values[0], others[0]):
            found.append((str(values[0].name), str(others[0].name)))
    return found


def _by_stem(values: list[ir.Value]) -> dict[str, list[ir.Value]]:
    found: dict[str, list[ir.Value]] = {}
    for value in values:
        found.setdefault(_AFFIXES.sub("", str(value.name)).lower(), []).append(value)
    return found


def _alike(one: ir.Value, other: ir.Value) -> bool:
    if one.type != other.type and other.type is not None:
        return False
    if one.shape is None or other.shape is None:
        return True
    sizes = zip(one.shape, other.shape, strict=False)
    fixed = [(left, right) for left, right in sizes if isinstance(left, int) and isinstance(right, int)]
    return len(one.shape) == len(other.shape) and all(left == right for left, right in fixed)
