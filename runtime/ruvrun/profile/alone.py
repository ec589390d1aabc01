"""A pipeline of one stage, made for measuring: a manifest and a key around a bundle that lies anywhere.

A bundle of a build has its own manifest, but that names nodes, addresses and keys of a fleet; a probe has none. So the
ring that is measured is another one, written into a scratch folder: one node, which is stage and head, called ``here``.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from pathlib import Path

from ruvrun.bundle import SECRET_KEY, StageSpec, stage_of
from ruvrun.manifest import (
    LOCAL,
    MANIFEST,
    Head,
    Manifest,
    Node,
    Pipeline,
    Placed,
    Program,
    dump_manifest,
    identify,
    load_manifest,
)
from ruvrun.placement import LOOPBACK, Endpoint, Endpoints
from ruvrun.ports import free_ports
from ruvrun.transport.keys import make_keypair, write_keys

NODE = "here"


@dataclass(frozen=True)
class Alone:
    """A pipeline of one stage: the stage's bundle, the folder with manifest and key, and where both ends listen."""

    directory: Path
    folder: Path
    endpoints: Endpoints
    manifest: Manifest


def stand_alone(directory: Path, spec: StageSpec, folder: Path, *, context: int, network: bool) -> Alone:
    """Write what a ring of the stage in ``directory`` needs into ``folder``.

    Args:
        context: positions that the program has; 0 for a graph.
        network: whether the links are those between machines, encrypted, over loopback.
    """
    keys = make_keypair()
    (folder / SECRET_KEY).parent.mkdir(parents=True)
    write_keys(folder / SECRET_KEY, keys)
    decoder = spec.kind == "decoder"
    program = Program(
        name="measured",
        kind="decoder" if decoder else "graph",
        source="",
        source_sha256="",
        inputs=[] if decoder else spec.inputs,
        outputs=[] if decoder else spec.outputs,
        vocab=spec.vocab,
        context=context,
    )
    stage = stage_of(directory, spec, number=0, graph_nodes=0)
    pipelines = [Pipeline(stages=[Placed(stage=0, node=NODE)])]
    manifest = Manifest(
        id=identify(program, [stage], pipelines),
        program=program,
        stage=[stage],
        node=[Node(name=NODE, public_key=keys.public, target=spec.target)],
        pipeline=pipelines,
        head=Head(node=NODE),
    )
    (folder / MANIFEST).write_bytes(dump_manifest(manifest))
    return Alone(directory, folder, _endpoints(network), manifest)


def standing_alone(directory: Path, folder: Path, endpoints: Endpoints) -> Alone:
    """The same, in the stage's own process."""
    return Alone(directory, folder, endpoints, load_manifest(folder / MANIFEST))


def _endpoints(network: bool) -> Endpoints:
    if network:
        stage, head = free_ports(2)
        return Endpoints({NODE: Endpoint(LOOPBACK, stage)}, Endpoint(LOOPBACK, head))
    stage, head = secrets.randbits(62), secrets.randbits(62)
    return Endpoints({NODE: Endpoint(LOCAL, stage)}, Endpoint(LOCAL, head))
