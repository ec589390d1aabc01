"""Which node of a graph a kernel in a profile belongs to.

The profile is of the graph that ONNX Runtime made of ours, so its names are mapped back:

1. the name of one of our nodes is that node; of a node in a body, the node that has the body;
2. otherwise the longest of our node or output names that stands in it as a word, since fusions and layout
   changes derive their names (``conv2d_451.tmp_0_nchwc``, ``node_slice_5/GatherSliceToSplitFusion``);
   A kernel that is named after the last of the nodes fused into it (Conv, BatchNormalization, Relu) goes to the
   one whose operator it is, so that a cut between them does not put its cost on the wrong side;
3. what carries no name of ours goes to the node that ran before it, or after it when it reorders an input.

An If or Loop has its own event, which spans those of its body: where it is there, the body's are not counted.

All that this needs of the graph is in its sheet (``SheetNode``), so that a node without an ONNX library can do it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ruvrun.profile.sheet import SheetNode

_LONGEST_FUSION = 5
_WORD = re.compile(r"[^\W_]+")


class Event(NamedTuple):
    """One kernel in the profile: its node's name there, its operator, and how long it ran, in any one unit."""

    name: str
    operator: str
    duration: float


class Attribution:
    """The nodes of a graph, in the order of computation, ready to have profiles divided among them."""

    def __init__(self, nodes: Sequence[SheetNode]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._owner = _owners(nodes)
        self._found: dict[str, str | None] = {}

    def divide(self, events: Sequence[Event]) -> dict[str, float]:
        """The durations of ``events``, in the order in which they ran, by the name of the node they belong to."""
        own = dict.fromkeys(self._nodes, 0.0)
        inner = dict.fromkeys(self._nodes, 0.0)
        carried, last = 0.0, next(iter(own))
        for event in events:
            name = self._find(event.name)
            if name is None:
                if event.operator == "ReorderInput":
                    carried += event.duration
                else:
                    own[last] += event.duration
                continue
            last, in_body = self._owner[name]
            if not in_body:
                last = self._same_operator(last, event.operator)
            (inner if in_body else own)[last] += event.duration
            own[last] += carried
            carried = 0.0
        own[last] += carried
        return {name: own[name] if own[name] > 0 else inner[name] for name in own}

    def _find(self, name: str) -> str | None:
        if name not in self._found:  # the names of one run are those of the next
            self._found[name] = _find(name, self._owner)
        return self._found[name]

    def _same_operator(self, name: str, operator: str) -> str:
        """The node called so, or the nearest one of ``operator`` up the chain of first inputs, if there is one."""
        at = self._nodes.get(name)
        for _ in range(_LONGEST_FUSION):
            if at is None or at.op == operator:
                break
            at = self._nodes.get(at.source)
        return at.name if at is not None and at.op == operator else name


def _owners(nodes: Sequence[SheetNode]) -> dict[str, tuple[str, bool]]:
    """For every name of a node or of its outputs: the top-level node it belongs to, and whether it is in a body."""
    found: dict[str, tuple[str, bool]] = {}
    for node in nodes:
        for name in node.inside:
            found.setdefault(name, (node.name, True))
    for node in nodes:
        found.update((name, (node.name, False)) for name in node.outputs)
    found.update((node.name, (node.name, False)) for node in nodes)
    return found


def _find(name: str, known: Collection[str] | Mapping[str, object]) -> str | None:
    """``name`` if it is known, else the longest known name that stands in it between the borders of words."""
    if name in known:
        return name
    words = list(_WORD.finditer(name))
    starts = {0, *(word.start() for word in words)}
    ends = {len(name), *(word.end() for word in words)}
    spans = sorted(((end - start, start, end) for start in starts for end in ends if start < end), reverse=True)
    return next((name[start:end] for _, start, end in spans if name[start:end] in known), None)
