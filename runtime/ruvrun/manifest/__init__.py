"""``manifest.toml`` and ``nodes.toml``: the contract between the nodes, and where they are.

The manifest says *what* is computed and by whom: the program, the stages, the nodes' public keys, the
pipelines, the plan's predictions, and how far the pipelines were found to be from what the weights mean.
Every node holds the same manifest and refuses a peer that holds another one. Where the nodes are is not in
it: addresses and ports stand in ``nodes.toml`` beside it, which a person edits at will (or in
``node/nodes.toml`` of a bundle that was copied).

``id`` is a hash of what is computed: protocol, program, stages, pipelines. It does not cover addresses,
ports, keys, predictions, what was found, context or streams, so that those can change without a new build.

The compiler writes both files through ``dump_manifest`` and ``dump_nodes``; the reader owns the format.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated

import msgspec

from ruvrun.errors import InputError
from ruvrun.manifest.nodes import LOCAL, Address, HeadAddress, Nodes, dump_nodes, load_nodes
from ruvrun.manifest.nouns import (
    PACKED,
    RUNTIME_BYTES,
    SCALE_BYTES,
    SERVING_BYTES,
    Equality,
    Head,
    KeyValue,
    KvType,
    Node,
    Pipeline,
    Placed,
    Program,
    Space,
    Stage,
    Tensor,
    reserve,
)
from ruvrun.manifest.promise import Expected, Plan
from ruvrun.manifest.tables import Table
from ruvrun.toml import FORMAT as FORMAT
from ruvrun.toml import dump_toml as dump_toml
from ruvrun.toml import read_file as read_file
from ruvrun.toml import read_table as read_table
from ruvrun.toml import read_toml as read_toml

PROTOCOL = 1
MANIFEST = "manifest.toml"
NODES = "nodes.toml"


class Manifest(Table, frozen=True):
    """All of ``manifest.toml``."""

    id: str
    program: Program
    stage: list[Stage]
    node: list[Node]
    pipeline: Annotated[list[Pipeline], msgspec.Meta(min_length=1)]
    head: Head
    space: Space | None = None
    plan: Plan = Plan()
    equality: list[Equality] = []
    format: int = FORMAT
    protocol: int = PROTOCOL

    def node_named(self, name: str) -> Node:
        """The node called ``name``; it must be there, as every node is that ``load_manifest`` found placed."""
        return next(node for node in self.node if node.name == name)

    def place_of(self, name: str) -> tuple[int, Placed] | None:
        """Pipeline number and stage of a node, or None for a node that holds no stage."""
        for number, pipeline in enumerate(self.pipeline):
            for placed in pipeline.stages:
                if placed.node == name:
                    return number, placed
        return None


def identify(program: Program, stages: list[Stage], pipelines: list[Pipeline]) -> str:
    """The manifest's ``id``: SHA-256 (hex) over protocol, program, stages and pipelines.

    The program's file name, its display name, its measured loss and the samples are not part of what is computed.
    """
    what = msgspec.to_builtins(program)
    for key in ("name", "source", "loss", "samples"):
        what.pop(key, None)
    body = [PROTOCOL, what, msgspec.to_builtins(stages), msgspec.to_builtins(pipelines)]
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def load_manifest(path: Path) -> Manifest:
    """Read and check ``manifest.toml``: form, format and protocol number, its own ``id``, its nodes and stages."""
    manifest = read_toml(path, Manifest, "manifest")
    if manifest.protocol != PROTOCOL:
        raise InputError(
            "protocol-unknown",
            f"{path} speaks protocol {manifest.protocol}, this version {PROTOCOL}",
            hint="use the version of ruvrun that belongs to the one that built it",
        )
    wanted = identify(manifest.program, manifest.stage, manifest.pipeline)
    if manifest.id != wanted:
        raise InputError(
            "manifest-id-wrong",
            f"{path} does not match its own id",
            context=[f"it says {manifest.id[:12]}, its content is {wanted[:12]}"],
            hint="it was edited by hand; build again, and put addresses into nodes.toml",
        )
    named = [node.name for node in manifest.node]
    placed = [entry.node for pipeline in manifest.pipeline for entry in pipeline.stages]
    if unknown := sorted({manifest.head.node, *placed} - set(named)):
        # The nodes' tables hold keys, which the id does not cover.
        raise InputError(
            "manifest-node-missing",
            f"{path} has no [[node]] for {unknown[0]}",
            context=[f"it has: {', '.join(named)}"],
            hint="it was edited by hand; copy it from the build again",
        )
    if twice := sorted({node for node in placed if placed.count(node) > 1}):
        # Who sent a result is known by its node.
        raise InputError(
            "manifest-node-twice",
            f"{path} places two stages on {twice[0]}",
            hint="a node holds one stage of one pipeline: build again",
        )
    held = {stage.index for stage in manifest.stage}
    if absent := sorted({entry.stage for pipeline in manifest.pipeline for entry in pipeline.stages} - held):
        raise InputError(
            "manifest-stage-missing",
            f"{path} places stage {absent[0]}, and has no such [[stage]]",
            hint="build again, and copy the manifest whole",
        )
    return manifest


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.toml``."""
    return dump_toml(manifest)


__all__ = [
    "FORMAT",
    "LOCAL",
    "MANIFEST",
    "NODES",
    "PACKED",
    "PROTOCOL",
    "RUNTIME_BYTES",
    "SCALE_BYTES",
    "SERVING_BYTES",
    "Address",
    "Equality",
    "Expected",
    "Head",
    "HeadAddress",
    "KeyValue",
    "KvType",
    "Manifest",
    "Node",
    "Nodes",
    "Pipeline",
    "Placed",
    "Plan",
    "Program",
    "Space",
    "Stage",
    "Tensor",
    "dump_manifest",
    "dump_nodes",
    "dump_toml",
    "identify",
    "load_manifest",
    "load_nodes",
    "read_file",
    "read_table",
    "read_toml",
    "reserve",
]
