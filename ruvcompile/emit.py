"""Write a build: bundles, manifest, addresses and costs, into the folder that will appear all at once.

What the hashes cover depends on the stage alone (see ``ruvrun.bundle``); what is a node's own, keys above all,
lies under ``node/`` beside it. Keys belong to the fleet: made once, reused by every build.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import onnx_ir as ir
import zmq

from ruvcompile.errors import InputError
from ruvcompile.fleet import FleetNode
from ruvcompile.options import KEYS_DIR, Options
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.render import NodeFacts, mode_of, render_node
from ruvcompile.targets import Target, load_target
from ruvrun.bundle import BUNDLE, BUNDLES, HEAD, NODE, NODE_NAME, SECRET_KEY, StageSpec, file_sha256
from ruvrun.costs import CostTable, dump_costs
from ruvrun.manifest import (
    MANIFEST,
    NODES,
    Address,
    Head,
    HeadAddress,
    Manifest,
    Node,
    Nodes,
    Pipeline,
    Placed,
    Space,
    Stage,
    Tensor,
    dump_manifest,
    dump_nodes,
    identify,
)
from ruvrun.manifest import Plan as Predictions
from ruvrun.manifest import Program as ProgramEntry

COSTS = "costs.toml"
HEAD_PORT = 7069
_SECRET = ".secret"


@dataclass(frozen=True)
class Contents:
    """What a build consists of, made by the steps before.

    ``stages`` are directory and final spec of each stage, in order; ``quant`` what was done to the weights, as it
    was asked for; ``loss`` the distance from the source; ``choices`` the inputs a graph was measured with, as text.
    """

    program: Program
    plan: Plan
    stages: Sequence[tuple[Path, StageSpec]]
    costs: CostTable
    quant: str
    loss: Mapping[str, float]
    choices: Sequence[str]


def write_build(work: Path, contents: Contents, options: Options) -> Manifest:
    """Write all of a build into ``work`` but its stages, which are there, and its report, which needs the manifest."""
    program, plan = contents.program, contents.plan
    keys = _keys(work, options)
    used = {member.node.name: member for member in plan.members}
    head = options.fleet.node(options.fleet.head)
    listed = [*(member.node for member in plan.members), *([head] if head.name not in used else [])]
    entry = _program(contents)
    made = [_stage(number, *stage, plan) for number, stage in enumerate(contents.stages)]
    pipelines = [Pipeline(stages=[Placed(stage=number, node=name) for number, name in enumerate(used)])]
    manifest = Manifest(
        id=identify(entry, made, pipelines),
        program=entry,
        stage=made,
        node=[
            Node(
                name=node.name,
                public_key=keys[node.name][0],
                target=node.target,
                cpus=list(node.cpus),
                threads=used[node.name].threads if node.name in used else 1,
            )
            for node in listed
        ],
        pipeline=pipelines,
        head=Head(node=head.name),
        space=Space(context=plan.space.context, streams=plan.space.streams) if plan.space else None,
        plan=_predictions(plan),
    )
    nodes = Nodes(node=_addresses(listed), head=HeadAddress(port=HEAD_PORT))
    (work / MANIFEST).write_bytes(dump_manifest(manifest))
    (work / NODES).write_bytes(dump_nodes(nodes))
    (work / COSTS).write_bytes(dump_costs(contents.costs))
    for node in listed:
        target = used[node.name].target if node.name in used else load_target(node.target, options.targets_dir)
        _write_bundle(work / BUNDLES / node.name, program, manifest, nodes, node.name, keys[node.name], target)
    return manifest


def _program(contents: Contents) -> ProgramEntry:
    program, decoder = contents.program, contents.program.decoder
    graph = program.model.graph
    return ProgramEntry(
        name=program.name,
        kind="decoder" if decoder else "graph",
        source=program.source.path,
        source_sha256=program.source.sha256,
        architecture=decoder.architecture if decoder else "",
        quant=contents.quant,
        inputs=[] if decoder else [_tensor(value) for value in graph.inputs],
        outputs=[] if decoder else [_tensor(value) for value in graph.outputs],
        vocab=decoder.vocab if decoder else 0,
        context=decoder.context if decoder else 0,
        eos=list(decoder.eos) if decoder else [],
        files={name: sha256(data).hexdigest() for name, data in sorted(program.head_files.items())},
        loss=dict(contents.loss),
        samples=list(contents.choices),
    )


def _tensor(value: ir.Value) -> Tensor:
    assert value.name is not None and value.dtype is not None
    extents = value.shape if value.shape is not None else ()
    shape = [extent if isinstance(extent, int) else str(extent.value or "?") for extent in extents]
    return Tensor(name=value.name, dtype=value.dtype.numpy().name, shape=shape)


def _stage(number: int, directory: Path, spec: StageSpec, plan: Plan) -> Stage:
    return Stage(
        index=number,
        sha256=file_sha256(directory / BUNDLE),
        backend=spec.backend,
        target=spec.target,
        inputs=spec.inputs,
        outputs=spec.outputs,
        forward=spec.forward,
        weight_bytes=spec.weight_bytes,
        graph_nodes=len(plan.pieces[number].nodes),
        kv=spec.kv,
    )


def _predictions(plan: Plan) -> Predictions:
    figures = plan.figures
    rate = figures.get("predicted_tokens_per_s", figures.get("predicted_items_per_s"))
    return Predictions(
        cost_source=figures["cost_source"],
        bottleneck_ms=figures["bottleneck_ms"],
        lower_bound_ms=figures["lower_bound_ms"],
        gap=figures["gap"],
        stage_ms=[stage["predicted_ms"] for stage in figures["stages"]],
        tokens_per_s=float(rate or 0.0),
        verdict=figures["verdict"],
    )


def _addresses(nodes: Sequence[FleetNode]) -> list[Address]:
    """Addresses as in the fleet; processes of this machine that name no port of their own get one each."""
    found: list[Address] = []
    for node in nodes:
        port = node.port
        while node.local and any(entry.address == node.address and entry.port == port for entry in found):
            port += 1
        found.append(Address(name=node.name, address=node.address, port=port, ssh=node.ssh))
    return found


def _write_bundle(
    bundle: Path, program: Program, manifest: Manifest, nodes: Nodes, name: str, key: tuple[str, str], target: Target
) -> None:
    """Write what a bundle holds beside its stage: the manifest, and the node's own files."""
    (bundle / NODE).mkdir(parents=True, exist_ok=True)
    (bundle / MANIFEST).write_bytes(dump_manifest(manifest))
    (bundle / NODE / NODES).write_bytes(dump_nodes(nodes))
    (bundle / NODE_NAME).write_text(name + "\n", "utf-8")
    _write_secret(bundle / SECRET_KEY, key)
    address, entry, place = nodes.address_of(name), manifest.node_named(name), manifest.place_of(name)
    facts = NodeFacts(
        model=program.name,
        id=manifest.id,
        node=name,
        stage=place[1].stage if place else None,
        stages=len(manifest.stage),
        head=name == manifest.head.node,
        head_node=manifest.head.node,
        address=address.address,
        port=address.port,
        cpus=tuple(entry.cpus),
        threads=entry.threads,
    )
    for path, data in render_node(target, facts).items():
        (bundle / NODE / path).write_bytes(data)
        (bundle / NODE / path).chmod(mode_of(path))
    if name == manifest.head.node and program.head_files:
        (bundle / HEAD).mkdir(parents=True, exist_ok=True)
        for path, data in program.head_files.items():
            (bundle / HEAD / path).write_bytes(data)


def _keys(work: Path, options: Options) -> dict[str, tuple[str, str]]:
    """Public and secret key (Z85) of every node: the fleet's, or new ones where it has none.

    Keys beside a fleet file stay where they are. Others live in the build; all that the old build had go into the
    new one, those of nodes that it leaves out too, or a node that comes back would be a stranger.

    Raises:
        InputError: a key file that is none.
    """
    kept = options.keys
    place = kept if options.fleet.path is not None else work / KEYS_DIR
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = {path.name.removesuffix(_SECRET): _read_secret(path) for path in sorted(kept.glob(f"*{_SECRET}"))}
    for node in options.fleet.nodes:
        if node.name not in found or options.new_keys:
            public, secret = zmq.curve_keypair()
            found[node.name] = (public.decode(), secret.decode())
    for name, key in found.items():
        _write_secret(place / f"{name}{_SECRET}", key)
    return found


def _read_secret(path: Path) -> tuple[str, str]:
    try:
        public, secret = path.read_text("ascii").split()
        if zmq.curve_public(secret.encode()) == public.encode():
            return public, secret
    except (ValueError, zmq.ZMQError):
        pass
    raise InputError("key-wrong", f"{path} is not a key pair", hint="restore it, or remove it to get a new one")


def _write_secret(path: Path, key: tuple[str, str]) -> None:
    """Write a key pair for the owner's eyes only, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(f"{key[0]}\n{key[1]}\n")
    partial.replace(path)
