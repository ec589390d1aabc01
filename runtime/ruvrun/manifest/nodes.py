"""``nodes.toml``: where the nodes are."""

from __future__ import annotations

from pathlib import Path

from ruvrun.errors import InputError
from ruvrun.manifest.tables import Port, Table
from ruvrun.toml import FORMAT, dump_toml, read_toml

LOCAL = "local"


class Address(Table, frozen=True, omit_defaults=False):
    """Where a node listens. ``local`` is a process on this machine (127.0.0.1)."""

    name: str
    address: str = LOCAL
    port: Port = 7070
    ssh: str = ""


class HeadAddress(Table, frozen=True, omit_defaults=False):
    """The head's own link port on its node, where the last stage reports. Its host is the head node's."""

    port: Port = 7069


class Nodes(Table, frozen=True, omit_defaults=False):
    """All of ``nodes.toml``, which a person edits: every key stands there, also where it is the default."""

    node: list[Address]
    head: HeadAddress = HeadAddress()
    format: int = FORMAT

    def __post_init__(self) -> None:
        """Refuse two entries for one node: whoever reads on would take the first, and a person may mean the second."""
        names = [entry.name for entry in self.node]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"it has two entries for node {twice[0]!r}")

    def address_of(self, name: str) -> Address:
        """The entry of ``name``, or an error that lists what is there."""
        for entry in self.node:
            if entry.name == name:
                return entry
        raise InputError(
            "node-without-address",
            f"nodes.toml has no entry for node {name!r}",
            context=[f"it has: {', '.join(entry.name for entry in self.node)}"],
            hint=f'add a [[node]] table with name = "{name}" and its address',
        )


def load_nodes(path: Path) -> Nodes:
    """Read and check ``nodes.toml``."""
    return read_toml(path, Nodes, "nodes file")


def dump_nodes(nodes: Nodes) -> bytes:
    """The bytes of ``nodes.toml``."""
    return dump_toml(nodes)
