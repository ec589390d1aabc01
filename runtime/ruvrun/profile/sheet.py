"""``units.toml``: which nodes of a stage's graph belong to which unit of the program.

A cost table has a row per unit, and its key is a hash of what the unit computes, which only the compiler can tell. What
runs is the stage's graph, whose nodes the lowering has merged and renamed. This sheet, written beside the graph and
hashed like it, joins the two, so that a machine without a compiler can say what each unit costs.

A back end merges and renames once more when it loads the graph. The name of a kernel in its profile is mapped back in
``trace``; what that needs of a graph that was not lowered stands in ``SheetNode``.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ruvrun.bundle import StageSpec
from ruvrun.errors import InputError
from ruvrun.manifest import FORMAT, read_toml

UNITS = "units.toml"


class SheetNode(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A node of the stage's graph, for back ends that rename what they run.

    Attributes:
        name, op: its name and operator.
        outputs: names of the values it makes.
        inside: names of the nodes and values in its bodies.
        source: name of the node that makes its first input; empty where that comes from outside.
    """

    name: str
    op: str
    outputs: list[str] = []
    inside: list[str] = []
    source: str = ""


class SheetUnit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A unit of this stage.

    Attributes:
        key: hash of what it computes; units of equal key are one row of the cost table.
        label: for people: ``layers.*.attn``.
        nodes: names of its nodes in the stage's graph.
        weight_bytes: of the weights that it alone reads, as they are stored.
    """

    key: str
    label: str
    nodes: list[str]
    weight_bytes: int = 0


class Sheet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of ``units.toml``.

    Attributes:
        unit: the units, in order.
        node: only where names alone do not tell (graphs).
        context: positions that a decoder has; 0 for any other graph.
        shared_bytes: of the weights that several units read, each once, as they are stored.
    """

    unit: list[SheetUnit]
    node: list[SheetNode] = []
    context: int = 0
    shared_bytes: int = 0
    format: int = FORMAT


def load_sheet(directory: Path, spec: StageSpec) -> Sheet:
    """The sheet of the stage in ``directory``.

    Raises:
        InputError: ``units-missing``, or it is not valid.
    """
    if UNITS not in {file.path for file in spec.files} or not (directory / UNITS).is_file():
        raise InputError(
            "units-missing",
            f"{directory} does not say which units its nodes belong to",
            context=[f"there is no {UNITS} in it; it was built by an earlier version"],
            hint="build it again, or make a probe with `ruvcompile probe`",
        )
    return read_toml(directory / UNITS, Sheet, "sheet of units")
