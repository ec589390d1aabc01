"""Cut an exported decoder into blocks, by the names that the rest of the compiler knows units by.

A decoder in canonical form says by its nodes' names which unit each belongs to (``/layers.3/attn/...``). A graph that
is run as it is gets such names here, from what flows:

1. *Local* nodes read nothing but weights and what a stage can be given from positions alone (``position_ids``,
   ``attention_mask``, ``cache_position``): masks, rotary tables, sizes. They are neither in one stage nor sent to
   another, but copied into every block that reads them; the reader of the stage merges the copies again.
2. A *border* lies between two of the other nodes, in topological order, where all values that cross are activations
   ``[batch, sequence, width ...]``, as runs of a few sizes show, and no state is read or made on both sides.
3. Of the borders between two parts that hold state, those are kept over which the least is sent; of several in a row
   with no weights between them, the first.
4. A block that holds state is ``/layers.i/attn``, those behind it ``/layers.i/mlp``, ``/layers.i/mlp.2`` and so on;
   what comes before all state is ``/embed``, and the last block behind it ``/head``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import onnx_ir as ir

from ruvcompile.load.decoder_onnx.look import drop_unread, local_values
from ruvcompile.load.decoder_onnx.runs import Seen
from ruvcompile.passes.scope import is_weight, reads
from ruvcompile.passes.state import Ports

# Borders over which more values cross than this are not looked at.
MOST_CROSSING = 3
# Matrices up to this many elements are no weights worth a block of their own; nor are a norm's.
_SMALL = 256


@dataclass(frozen=True)
class Border:
    """A place between two nodes: the number of those before it, and the values that cross, by name."""

    before: int
    crossing: tuple[str, ...]


def crossing(model: ir.Model, ports: Ports) -> tuple[str, ...]:
    """The values that cross some place where the graph may be cut, if they are activations; to be looked at."""
    nodes, local = _apart(model.graph)
    return tuple(dict.fromkeys(name for border in _candidates(nodes, local, ports) for name in border.crossing))


def name_blocks(model: ir.Model, ports: Ports, seen: Seen) -> int:
    """Name the nodes of ``model`` by blocks, in place, and copy what is local; returns the width of what is sent.

    Args:
        model: with sizes settled.
        ports: of it.
        seen: what ``crossing`` names, in runs of ``model``.
    """
    graph = model.graph
    nodes, local = _apart(graph)
    borders = _candidates(nodes, local, ports)
    widths = _widths(borders, seen)
    legal = [border for border in borders if all(name in widths for name in border.crossing)]
    kept = _choose(nodes, legal, widths, ports)
    starts = [0, *(border.before for border in kept), len(nodes)]
    blocks = [nodes[start:stop] for start, stop in pairwise(starts)]
    _describe(graph, kept, widths, seen)
    for name, block in zip(_names(blocks, ports), blocks, strict=True):
        _copy_local(graph, block, local, name)
        for node in block:
            node.name = f"/{name}/{str(node.name).strip('/')}"
    graph.sort()
    drop_unread(graph)
    return min((_sent(border, widths) for border in kept), default=0)


def _apart(graph: ir.Graph) -> tuple[list[ir.Node], set[ir.Node]]:
    """The nodes that compute, in order, and those that are local (rule 1)."""
    known = local_values(graph)
    local = {node for node in graph if all(value in known for value in node.outputs)}
    return [node for node in graph if node not in local], local


def _candidates(nodes: Sequence[ir.Node], local: set[ir.Node], ports: Ports) -> list[Border]:
    """Borders of few crossing values that do not part any state from what reads or makes it."""
    place = {node: number for number, node in enumerate(nodes)}
    last: dict[ir.Value, int] = {}
    for node in nodes:
        for value in reads(node):
            last[value] = place[node]
    for node in local:  # a local node reads no activation; it is listed to say so
        assert not any(value.producer() in place for value in reads(node))
    parted = [_span(pair.past, pair.present, place) for pair in ports.pairs]
    closed = {number for start, stop in parted for number in range(start + 1, stop + 1)}
    ids_until = last.get(ports.ids, 0)
    open_values: dict[ir.Value, None] = {}
    found = []
    for number, node in enumerate(nodes[:-1]):
        for value in node.outputs:
            if last.get(value, -1) > number:
                open_values[value] = None
        for value in [value for value in open_values if last[value] <= number]:
            del open_values[value]
        before = number + 1
        if before not in closed and before > ids_until and 0 < len(open_values) <= MOST_CROSSING:
            found.append(Border(before, tuple(str(value.name) for value in open_values)))
    return found


def _span(past: ir.Value, present: ir.Value, place: Mapping[ir.Node, int]) -> tuple[int, int]:
    """The first and last node that have to do with a part of the state."""
    nodes = [*(use.node for use in past.uses()), present.producer()]
    places = [place[node] for node in nodes if node is not None and node in place]
    return (min(places), max(places)) if places else (0, 0)


def _widths(borders: Sequence[Border], seen: Seen) -> dict[str, tuple[int, ...]]:
    """The activations ``[batch, sequence, ...]`` among what crosses: their other sizes."""
    found = {}
    for name in dict.fromkeys(name for border in borders for name in border.crossing):
        kind, dims = seen.kinds.get(name), seen.dims(name)
        if kind is None or kind.kind != "f" or dims is None or len(dims) < 3 or dims[:2] != ("batch", "sequence"):
            continue
        rest = tuple(size for size in dims[2:] if isinstance(size, int))
        if len(rest) == len(dims) - 2:
            found[name] = rest
    return found


def _choose(
    nodes: Sequence[ir.Node], borders: Sequence[Border], widths: Mapping[str, tuple[int, ...]], ports: Ports
) -> list[Border]:
    """Rule 3."""
    pasts = {pair.past for pair in ports.pairs}
    holds = [any(value in pasts for value in reads(node)) for node in nodes]
    kept: list[Border] = []
    region: list[Border] = []
    done = 0
    for border in [*borders, None]:
        end = border.before if border is not None else len(nodes)
        if any(holds[done:end]) or border is None:
            least = min((_sent(each, widths) for each in region), default=0)
            kept += [each for each in region if _sent(each, widths) == least]
            region = []
        if border is not None:
            region.append(border)
        done = end
    result: list[Border] = []
    for border in kept:
        start = result[-1].before if result else 0
        block = nodes[start : border.before]
        if any(holds[start : border.before]) or any(_heavy(node) for node in block):
            result.append(border)
        elif not result:
            continue
    return [border for border in result if any(_heavy(node) for node in nodes[border.before :])]


def _sent(border: Border, widths: Mapping[str, tuple[int, ...]]) -> int:
    return sum(prod(widths[name]) for name in border.crossing)


def _heavy(node: ir.Node) -> bool:
    weights = (value.const_value for value in reads(node) if is_weight(value))
    return any(each is not None and len(each.shape) > 1 and each.size > _SMALL for each in weights)


def _names(blocks: Sequence[Sequence[ir.Node]], ports: Ports) -> list[str]:
    """Rule 4."""
    pasts = {pair.past for pair in ports.pairs}
    holding = [any(value in pasts for node in block for value in reads(node)) for block in blocks]
    names, layer, part = [], -1, 1
    for number, holds in enumerate(holding):
        if holds:
            layer, part = layer + 1, 1
            names.append(f"layers.{layer}/attn")
        elif layer < 0:
            names.append("embed")
        elif number == len(blocks) - 1:
            names.append("head")
        else:
            names.append(f"layers.{layer}/mlp" + (f".{part}" if part > 1 else ""))
            part += 1
    return names


def _describe(graph: ir.Graph, borders: Sequence[Border], widths: Mapping[str, tuple[int, ...]], seen: Seen) -> None:
    """Give the values that may be sent their types and shapes."""
    values = {str(value.name): value for node in graph for value in node.outputs}
    for name in {name for border in borders for name in border.crossing}:
        values[name].shape = ir.Shape(["batch", "sequence", *widths[name]])
        values[name].type = ir.TensorType(ir.DataType.from_numpy(seen.kinds[name]))


def _copy_local(graph: ir.Graph, block: Sequence[ir.Node], local: set[ir.Node], name: str) -> None:
    """Let ``block`` read copies of its own of what is local."""
    copies: dict[ir.Value, ir.Value] = {}
    inside = set(block)
    for value in _needed(block, local):
        maker = value.producer()
        assert maker is not None
        inputs = [copies.get(each, each) if each is not None else None for each in maker.inputs]
        node = ir.node(
            maker.op_type,
            inputs,
            attributes={key: attribute.value for key, attribute in maker.attributes.items()},
            domain=maker.domain,
            overload=maker.overload,
            name=f"/{name}/local/{str(maker.name).strip('/')}",
            num_outputs=len(maker.outputs),
        )
        for old, new in zip(maker.outputs, node.outputs, strict=True):
            new.name, new.type, new.shape = f"{name}/{old.name}", old.type, old.shape
            copies[old] = new
        graph.insert_before(block[0], node)
    for old, new in copies.items():
        for use in list(old.uses()):
            if use.node in inside:
                use.node.replace_input_with(use.idx, new)


def _needed(block: Sequence[ir.Node], local: set[ir.Node]) -> list[ir.Value]:
    """One output of each local node that ``block`` depends on, what is read first first."""
    found: dict[ir.Node, ir.Value] = {}
    stack: list[tuple[ir.Node, bool]] = []
    for node in block:
        stack += [(maker, False) for value in reads(node) if (maker := value.producer()) in local and maker is not None]
        while stack:
            top, ready = stack.pop()
            if top in found:
                continue
            if ready:
                found[top] = top.outputs[0]
                continue
            stack.append((top, True))
            stack += [(maker, False) for v in reads(top) if (maker := v.producer()) is not None and maker in local]
    return list(found.values())


__all__ = ["name_blocks"]
