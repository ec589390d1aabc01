"""A build of one pipeline made into one of several, by hand: the same stages again, on nodes of their own."""

from __future__ import annotations

import shutil
from pathlib import Path

import msgspec

from ruvrun.bundle import BUNDLES, HEAD, NODE, NODE_NAME, SECRET_KEY
from ruvrun.manifest import (
    MANIFEST,
    NODES,
    Address,
    Pipeline,
    Placed,
    dump_manifest,
    dump_nodes,
    identify,
    load_manifest,
    load_nodes,
)
from ruvrun.pipeline import make_keypair, write_keys


def replicate(dist: Path, into: Path, pipelines: int) -> Path:
    """Copy the build in ``dist`` to ``into`` and give it so many pipelines; returns the manifest's path.

    The nodes of pipeline 1 are called like those of pipeline 0 and ``-r1``.
    """
    shutil.copytree(dist, into)
    manifest, nodes = load_manifest(into / MANIFEST), load_nodes(into / NODES)
    entries, addresses, placed = list(manifest.node), list(nodes.node), list(manifest.pipeline)
    for number in range(1, pipelines):
        stages = []
        for one in manifest.pipeline[0].stages:
            name = f"{one.node}-r{number}"
            keys = make_keypair()
            shutil.copytree(into / BUNDLES / one.node, into / BUNDLES / name)
            shutil.rmtree(into / BUNDLES / name / HEAD, ignore_errors=True)
            (into / BUNDLES / name / NODE_NAME).write_text(name + "\n")
            (into / BUNDLES / name / SECRET_KEY).unlink()
            write_keys(into / BUNDLES / name / SECRET_KEY, keys)
            entries.append(msgspec.structs.replace(manifest.node_named(one.node), name=name, public_key=keys.public))
            addresses.append(Address(name=name, port=max(address.port for address in addresses) + 1))
            stages.append(Placed(stage=one.stage, node=name))
        placed.append(Pipeline(stages=stages))
    manifest = msgspec.structs.replace(
        manifest, node=entries, pipeline=placed, id=identify(manifest.program, manifest.stage, placed)
    )
    nodes = msgspec.structs.replace(nodes, node=addresses)
    for folder in (into, *(into / BUNDLES / entry.name for entry in entries)):
        (folder / MANIFEST).write_bytes(dump_manifest(manifest))
        (folder / NODES if folder == into else folder / NODE / NODES).write_bytes(dump_nodes(nodes))
    return into / MANIFEST
