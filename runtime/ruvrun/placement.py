"""Which part of a manifest this invocation runs, and where every part is.

A build's folder holds all bundles, a copied bundle holds one. When every node of the manifest is a process of
this machine and all bundles are here, one command runs everything, over links that need no ports: nothing has
to be configured. Otherwise one node is run, on the ports of ``nodes.toml``, because other machines must find it.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ruvrun.bundle import BUNDLES, NODE, find_bundles
from ruvrun.errors import InputError, UsageError, did_you_mean
from ruvrun.manifest import LOCAL, MANIFEST, NODES, Manifest, Nodes, Space, load_manifest, load_nodes

LOOPBACK = "127.0.0.1"


class Endpoint(msgspec.Struct, frozen=True, array_like=True):
    """Where a process listens for links: host and port, or ``local`` and a number (``transport/samehost.py``)."""

    host: str
    port: int


class Endpoints(msgspec.Struct, frozen=True):
    """Where every stage and the head process of a manifest listen: by node name, and the head."""

    nodes: dict[str, Endpoint]
    head: Endpoint


@dataclass(frozen=True)
class Placement:
    """What this invocation runs.

    ``bundles`` maps the nodes to run here to their bundle directories; ``stages`` are those of them that hold
    a stage; ``head`` tells whether the head process is among what runs here; ``whole`` that nothing runs
    anywhere else.
    """

    path: Path
    manifest: Manifest
    bundles: Mapping[str, Path]
    endpoints: Endpoints
    whole: bool

    @property
    def stages(self) -> list[str]:
        return [name for name in self.bundles if self.manifest.place_of(name)]

    @property
    def in_order(self) -> list[str]:
        """The nodes of all stages, pipeline after pipeline, each in its order."""
        return [placed.node for pipeline in self.manifest.pipeline for placed in pipeline.stages]

    @property
    def head(self) -> bool:
        return self.manifest.head.node in self.bundles

    def streams(self, space: Space) -> int:
        """Sequences at a time of all pipelines together, where each has ``space``."""
        return space.streams * len(self.manifest.pipeline)

    @property
    def head_bundle(self) -> Path:
        """The bundle of the head's node, with its key and the tokenizer."""
        return self.bundles[self.manifest.head.node]


def place(path: Path, node: str | None = None) -> Placement:
    """Decide what to run of the manifest at ``path``; ``node`` is what the user asked for.

    Raises:
        InputError: there is no manifest or no bundle, or one of them is not what it should be.
        UsageError: there are several bundles here, and nothing says which; or no such node.
    """
    path = manifest_path(path)
    manifest = load_manifest(path)
    nodes = read_nodes(path)
    found = find_bundles(path, manifest)
    require_node(manifest, node)
    if not found or (node is not None and node not in found):
        raise InputError(
            "bundle-missing",
            f"no bundle {f'of {node} ' if node else ''}beside {path}",
            context=[f"looked for {path.parent / 'bundle.toml'} and {path.parent / 'bundles'}/<node>/"],
            hint="give the manifest inside a bundle directory, or the one of a whole build",
        )
    used = {placed.node for pipeline in manifest.pipeline for placed in pipeline.stages} | {manifest.head.node}
    local = all(nodes.address_of(name).address == LOCAL for name in used)
    missing = sorted(used - found.keys())
    if node is None and local and missing and (path.parent / BUNDLES).is_dir():
        # Nobody else will start them: this would wait for ever.
        raise InputError(
            "bundle-missing",
            f"the bundle of {', '.join(missing)} is not beside {path}",
            context=[f"looked for {path.parent / BUNDLES / missing[0]}; all nodes of this build are on this machine"],
            hint="build again, or run one of the others with --node",
        )
    if node is None and local and not missing:
        return Placement(path, manifest, {name: found[name] for name in sorted(used)}, _anywhere(manifest), True)
    if node is None and len(found) > 1:
        raise UsageError(
            "node-not-said",
            f"{path.parent} holds the bundles of {len(found)} nodes, and not all of them run on this machine",
            context=[f"they are: {', '.join(sorted(found))}"],
            hint="say which one this is with --node; `ruvrun bench` takes builds whose nodes are all on one machine",
        )
    name = node if node is not None else next(iter(found))
    if name not in used:
        raise InputError(
            "node-without-part",
            f"{name} has no part in {path}: it holds no stage and is not the head",
            context=[f"those that have: {', '.join(sorted(used))}"],
            hint="copy the bundle and the manifest of one build",
        )
    alone = used == {name}  # links of this machine alone, whatever name it is known by to others, or is not
    if not local and not alone:
        _require_addresses(nodes, sorted(used))
    return Placement(
        path, manifest, {name: found[name]}, _anywhere(manifest) if alone else endpoints(manifest, nodes), alone
    )


def require_node(manifest: Manifest, name: str | None) -> None:
    """Refuse a name that no node of the manifest has, as a usage error; None is no name."""
    known = [entry.name for entry in manifest.node]
    if name is not None and name not in known:
        raise UsageError("node-unknown", f"this manifest has no node {name!r}", hint=did_you_mean(name, known))


def manifest_path(path: Path) -> Path:
    """The manifest itself where a directory that holds one is given."""
    return path / MANIFEST if path.is_dir() else path


def read_nodes(path: Path) -> Nodes:
    """``nodes.toml`` beside the manifest, or the copy inside a bundle's ``node/``."""
    beside, inside = path.parent / NODES, path.parent / NODE / NODES
    return load_nodes(beside if beside.is_file() or not inside.is_file() else inside)


def endpoints(manifest: Manifest, nodes: Nodes) -> Endpoints:
    """Where everything is according to ``nodes.toml``."""
    where = {node.name: nodes.address_of(node.name) for node in manifest.node}
    hosts = {name: LOOPBACK if entry.address == LOCAL else entry.address for name, entry in where.items()}
    return Endpoints(
        nodes={name: Endpoint(hosts[name], entry.port) for name, entry in where.items()},
        head=Endpoint(hosts[manifest.head.node], nodes.head.port),
    )


def _require_addresses(nodes: Nodes, used: Sequence[str]) -> None:
    """A node that others look for has an address; its own machine is where they would look for ``local``."""
    if unknown := [name for name in used if nodes.address_of(name).address == LOCAL]:
        raise InputError(
            "node-local",
            f"nodes.toml says 'local' of {', '.join(unknown)}, where no other machine finds it",
            context=["some nodes are other machines: " + ", ".join(name for name in used if name not in unknown)],
            hint="write its address, the same in every bundle",
        )


def space(manifest: Manifest, context: int | None, streams: int | None) -> Space:
    """The key/value space of each pipeline: as asked, else as planned. A graph has none, so one of each.

    Args:
        manifest: what is served.
        context: positions per sequence, as asked.
        streams: sequences at a time, as asked: of all pipelines together, which share them.

    Raises:
        UsageError: the context is longer than the model's, or a number is not positive.
    """
    planned = manifest.space or Space(context=1, streams=1)
    share = -(-streams // len(manifest.pipeline)) if streams else planned.streams
    wanted = Space(context=context or planned.context, streams=share)
    longest = manifest.program.context
    if longest and wanted.context > longest:
        raise UsageError(
            "context-too-long",
            f"--context {wanted.context} is more than this model was trained for",
            context=[f"{manifest.program.name} has {longest} positions"],
            hint=f"give --context {longest} or less",
        )
    return wanted


def _anywhere(manifest: Manifest) -> Endpoints:
    """Links of this machine alone: numbers that nobody else has, and no ports."""
    numbers = [secrets.randbits(62) for _ in range(1 + len(manifest.node))]
    return Endpoints(
        nodes={node.name: Endpoint(LOCAL, number) for node, number in zip(manifest.node, numbers, strict=False)},
        head=Endpoint(LOCAL, numbers[-1]),
    )
