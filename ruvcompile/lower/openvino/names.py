"""Names that follow from the graph alone, in an intermediate representation as OpenVINO writes it.

What a rule of OpenVINO adds is called after a number that counts on through the process, so the same stage would be
another file the second time it is written. A name of ours stays; any other layer is named after the unit it works for:
that of the first layer behind it which has one. So a profile can be told by units, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from xml.etree import ElementTree

from ruvcompile.passes.pieces import unit_of
from ruvrun.executors.openvino.cpu.attention import layer_of

_FIXED = ("Parameter", "Result")


def name_layers(
    net: ElementTree.Element, values: Mapping[str, str], weights: Collection[str], attention: Sequence[str] = ()
) -> dict[str, str]:
    """Rename the layers of ``net`` in place.

    Args:
        values: the nodes of the stage in canonical form, by the values they make. A layer is mostly called after its
            node, and where it is not, what it makes is called as it was.
        weights: its initializers.
        attention: the nodes of its layers of attention, where that was taken out
            (``ruvrun.executors.openvino.cpu.attention``).

    Returns:
        The unit of each layer, by its id.
    """
    layers, known = [*net.iterfind("layers/layer")], frozenset(values.values())
    for layer in layers:
        made = ",".join(port.get("names", "") for port in layer.iterfind("output/port")).split(",")
        node = next((values[name] for name in made if name in values), None)
        if node is not None and layer.get("name") not in known and layer.get("type") not in _FIXED:
            layer.set("name", node)
    edges = [(edge.get("from-layer", ""), edge.get("to-layer", "")) for edge in net.iterfind("edges/edge")]
    units = _units(layers, edges, known, attention)
    taken: Counter[str] = Counter()
    results = {_id(layer) for layer in layers if layer.get("type") == "Result"}
    ends = {maker for maker, reader in edges if reader in results}
    for layer in layers:
        name, kind = layer.get("name", ""), layer.get("type", "")
        if kind not in _FIXED and name not in known and name not in weights:
            name = f"/{units[_id(layer)].replace('.attn', '/attn').replace('.mlp', '/mlp')}/{kind}"
        taken[name] += 1
        layer.set("name", name if taken[name] == 1 else f"{name}.{taken[name]}")
        if kind not in _FIXED and _id(layer) not in ends:
            for port in layer.iterfind("output/port"):
                port.attrib.pop("names", None)
    return units


def _units(
    layers: list[ElementTree.Element],
    edges: list[tuple[str, str]],
    known: Collection[str],
    attention: Sequence[str],
) -> dict[str, str]:
    """The unit of each layer by id: its own name's, else that of the first one behind it, else of the one before."""
    behind: dict[str, list[str]] = {}
    before: dict[str, str] = {}
    for maker, reader in edges:
        behind.setdefault(maker, []).append(reader)
        before.setdefault(reader, maker)
    units = {_id(layer): unit_of(name) for layer in layers if (name := layer.get("name", "")) in known}
    for layer in layers:
        if (number := layer_of(layer.get("name", ""))) is not None and attention:
            units[_id(layer)] = unit_of(attention[number])
    for layer in reversed(layers):  # they are in the order of computation
        found = [units[each] for each in sorted(behind.get(_id(layer), ()), key=int) if each in units]
        if found:
            units.setdefault(_id(layer), found[0])
    for layer in layers:
        units.setdefault(_id(layer), units.get(before.get(_id(layer), ""), "head"))
    return units


def _id(layer: ElementTree.Element) -> str:
    return layer.get("id", "")
