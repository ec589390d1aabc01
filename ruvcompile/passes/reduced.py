"""A decoder with few of its layers: as many as show everything that its layers cost.

Layers of equal shape cost the same, and a plan takes the cost of a unit by what it computes (``unit_keys``). So what
stands for the whole has the embedding, the head, and of the layers the first one of every kind; more where there is
room, since a few layers that are run again and again sit in the cache and look faster than they are.

What reads a layer that is left out reads the nearest one before it that stays, by the names of the nodes, which are
equal but for the number of the layer. The first layer always stays.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import onnx_ir as ir

from ruvcompile.passes.pieces import unit_of
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program

_LAYER = re.compile(r"/?layers\.(\d+)\b")


def reduced(program: Program, units: Sequence[Unit], keys: Sequence[str], most: int = 0) -> Program:
    """The program with the layers that ``kept`` names; the program itself where layers cannot be left out of it.

    Args:
        program: a decoder's; not changed.
        units, keys: of the program.
        most: bytes of weights that all units together may have; one layer of each kind stays in any case.
    """
    assert program.decoder is not None
    chosen = kept(program, units, keys, most)
    if len(chosen) == len({number for unit in units if (number := layer_of(unit.nodes[0])) is not None}):
        return program
    model = program.model.clone()
    if not _leave_out(model.graph, chosen):
        return program
    return replace(program, model=model, decoder=replace(program.decoder, layers=len(chosen)))


def kept(program: Program, units: Sequence[Unit], keys: Sequence[str], most: int) -> list[int]:
    """Numbers of the layers that stay: the first, one of each kind, and more from the front while there is room."""
    members: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        if (layer := layer_of(unit.nodes[0])) is not None:
            members.setdefault(layer, []).append(number)
    chosen: list[int] = []
    covered: set[str] = set()
    for layer, numbers in members.items():
        own = {keys[number] for number in numbers}
        if not chosen or not own <= covered:
            chosen.append(layer)
            covered |= own
    ends = [number for number, unit in enumerate(units) if layer_of(unit.nodes[0]) is None]
    sizes = _sizes(program, units)
    room = most - sum(sizes[number] for number in ends + [each for layer in chosen for each in members[layer]])
    for layer, numbers in members.items():
        room -= 0 if layer in chosen else sum(sizes[number] for number in numbers)
        if room < 0:
            break
        if layer not in chosen:
            chosen.append(layer)
    return sorted(chosen)


def layer_of(name: str) -> int | None:
    """The number of the layer that a node of this name belongs to; None for what is before and behind them."""
    found = _LAYER.match(unit_of(name))
    return int(found.group(1)) if found else None


def _sizes(program: Program, units: Sequence[Unit]) -> list[int]:
    values = program.model.graph.initializers
    stored = {name: value.const_value.nbytes for name, value in values.items() if value.const_value is not None}
    return [sum(stored.get(name, 0) for name in set(unit.weights)) for unit in units]


def _leave_out(graph: ir.Graph, chosen: Collection[int]) -> bool:
    """Take all other layers out of ``graph``; False, and nothing is done, where one reads what has no equal."""
    nodes = {str(node.name): node for node in graph}
    gone = {node for node in graph if (layer := layer_of(str(node.name))) is not None and layer not in chosen}
    reading = []
    for node in graph:
        for index, value in enumerate(node.inputs):
            maker = value.producer() if value is not None else None
            if node in gone or maker is None or maker not in gone:
                continue
            other = _equal(maker, nodes, chosen)
            if other is None or value is None:
                return False
            reading.append((node, index, other.outputs[value.index() or 0]))
    for node, index, value in reading:
        node.replace_input_with(index, value)
    for output in [value for value in graph.outputs if value.producer() in gone]:
        graph.outputs.remove(output)
    graph.remove(gone, safe=False)
    for value in [value for value in graph.inputs if str(value.name).startswith("past_") and not _read(value, gone)]:
        graph.inputs.remove(value)
    for name in [name for name, value in graph.initializers.items() if not _read(value, gone)]:
        del graph.initializers[name]
    return True


def _equal(node: ir.Node, nodes: Mapping[str, ir.Node], chosen: Collection[int]) -> ir.Node | None:
    """The node of the nearest layer before that stays which does there what ``node`` does in its own."""
    layer = layer_of(str(node.name))
    assert layer is not None
    before = max(each for each in chosen if each < layer)
    return nodes.get(str(node.name).replace(f"layers.{layer}/", f"layers.{before}/", 1))


def _read(value: ir.Value, gone: Collection[ir.Node]) -> bool:
    return any(use.node not in gone for use in value.uses())
