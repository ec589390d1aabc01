"""Builds on disk that hold nothing to compute: enough for everything that happens before a stage is loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ruvrun.bundle import BUNDLE, File, StageSpec
from ruvrun.manifest import (
    Address,
    HeadAddress,
    KeyValue,
    Manifest,
    Nodes,
    dump_manifest,
    dump_nodes,
    dump_toml,
    identify,
)
from tests.runtime.fake_ring import fake_manifest


def write_build(
    directory: Path,
    names: Sequence[str] = ("a", "b"),
    addresses: Mapping[str, str] = {},
    kind: str = "decoder",
    pipelines: int = 1,
) -> Path:
    """Write manifest, nodes and bundles; returns the manifest's path."""
    manifest = fake_manifest(names, kind, pipelines=pipelines)
    stages = []
    count = len(names) // pipelines
    for index, name in enumerate(names):
        bundle = directory / "bundles" / name
        (bundle / "node" / "head").mkdir(parents=True)
        (bundle / "node" / "name").write_text(name + "\n")
        graph = b"graph " + names[index % count].encode()
        (bundle / "stage.onnx").write_bytes(graph)
        digest = hashlib.sha256(graph).hexdigest()
        kv = KeyValue(layers=2, heads=3, head_size=64, dtype="float32") if kind == "decoder" else None
        spec = StageSpec(
            kind=kind, backend="onnxruntime", target="host", model="stage.onnx", first=index % count == 0,
            last=index % count == count - 1, inputs=[], outputs=[], forward=[],
            files=[File(path="stage.onnx", sha256=digest, bytes=len(graph))], kv=kv,
        )  # fmt: skip
        (bundle / BUNDLE).write_bytes(dump_toml(spec))
        digest = hashlib.sha256((bundle / BUNDLE).read_bytes()).hexdigest()
        if index < count:
            stages.append(msgspec.structs.replace(manifest.stage[index], sha256=digest, kv=kv))
    manifest = msgspec.structs.replace(manifest, stage=stages, id=identify(manifest.program, stages, manifest.pipeline))
    entries = [Address(name=name, address=addresses.get(name, "local"), port=7070 + n) for n, name in enumerate(names)]
    write(directory, manifest, Nodes(node=entries, head=HeadAddress(port=7069)))
    return directory / "manifest.toml"


def write(directory: Path, manifest: Manifest, nodes: Nodes) -> None:
    """Put both files where a build has them."""
    (directory / "manifest.toml").write_bytes(dump_manifest(manifest))
    (directory / "nodes.toml").write_bytes(dump_nodes(nodes))
    for node in manifest.node:
        bundle = directory / "bundles" / node.name
        (bundle / "manifest.toml").write_bytes(dump_manifest(manifest))
        (bundle / "node" / "nodes.toml").write_bytes(dump_nodes(nodes))
