"""Write a build: bundles, manifest, addresses and costs, into the folder that will appear all at once.

What the hashes cover depends on the stage alone (see ``ruvrun.bundle``); what is a node's own, keys above all,
lies under ``node/`` beside it. Keys belong to the fleet: made once, reused by every build.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import onnx_ir as ir

from ruvcompile.fleet import FleetNode
from ruvcompile.options import KEYS_DIR, Options
from ruvcompile.passes.infer import named_dims, spelt
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.render import DELIVER, NodeFacts, mode_of, render_fleet, render_node
from ruvcompile.stages import Division, Lowered, copy_stage
from ruvcompile.targets import Target, load_target
from ruvrun import __version__
from ruvrun.backends import at_work
from ruvrun.bundle import BUNDLES, COMPILED, HEAD, NODE, NODE_NAME, SECRET_KEY, stage_of
from ruvrun.costs import COSTS, CostTable, dump_costs
from ruvrun.manifest import (
    MANIFEST,
    NODES,
    Address,
    Head,
    Manifest,
    Node,
    Nodes,
    Pipeline,
    Placed,
    Tensor,
    dump_manifest,
    dump_nodes,
    identify,
)
from ruvrun.manifest import Plan as Predictions
from ruvrun.manifest import Program as ProgramEntry
from ruvrun.pipeline import KeyPair, make_keypair, read_keys, write_keys

_SECRET = ".secret"


@dataclass(frozen=True)
class Contents:
    """What a build consists of, made by the steps before.

    ``lowered`` are the stages, finished, in the bundles of their first nodes; ``quant`` what was done to the weights,
    as it was asked for, and ``activations`` what products with such weights take; ``loss`` the distance from the
    source; ``choices`` the inputs a graph was measured with, as text.
    """

    program: Program
    plan: Plan
    lowered: Lowered
    costs: CostTable
    quant: str
    loss: Mapping[str, float]
    choices: Sequence[str]
    activations: str = "int8"


def write_build(work: Path, contents: Contents, options: Options) -> Manifest:
    """Write all of a build into ``work`` but its stages, which are there, and its report, which needs the manifest."""
    program, plan, lowered = contents.program, contents.plan, contents.lowered
    keys = _keys(work, options)
    used = {member.node.name: member for member in plan.members}
    head = options.fleet.node(options.fleet.head)
    listed = [node for node in options.fleet.nodes if node.name in used or node.name == head.name]
    entry = _program(contents)
    made = [
        stage_of(*stage, number=number, graph_nodes=len(lowered.division.stages[number][0].nodes))
        for number, stage in enumerate(lowered.stages)
    ]
    pipelines = [
        Pipeline(stages=[Placed(stage=stage, node=member.node.name) for stage, member in placed])
        for placed in lowered.division.pipelines
    ]
    manifest = Manifest(
        id=identify(entry, made, pipelines),
        program=entry,
        stage=made,
        node=[
            Node(
                name=node.name,
                public_key=keys[node.name].public,
                target=node.target,
                cpus=list(used[node.name].cpus if node.name in used else node.cpus),
                threads=used[node.name].threads if node.name in used else 1,
            )
            for node in listed
        ],
        pipeline=pipelines,
        head=Head(node=head.name),
        space=plan.space,
        plan=_predictions(plan, lowered.division),
    )
    nodes = Nodes(node=_addresses(listed))
    (work / MANIFEST).write_bytes(dump_manifest(manifest))
    (work / NODES).write_bytes(dump_nodes(nodes))
    (work / COSTS).write_bytes(dump_costs(contents.costs))
    for number, stage in enumerate(lowered.stages):
        for member in lowered.division.holders(number)[1:]:
            copy_stage(stage, work / BUNDLES / member.node.name)
    for name in used:  # of a run while the plan was settled, on this machine
        shutil.rmtree(work / BUNDLES / name / COMPILED, ignore_errors=True)
    targets = installed_on(plan, options)
    written: list[tuple[NodeFacts, Target]] = []
    for node in listed:
        target, _ = targets[node.name]
        bundle = work / BUNDLES / node.name
        written.append((_write_bundle(bundle, program, manifest, nodes, node.name, keys[node.name], target), target))
    if not all(node.local for node in listed):
        _write_delivery(work / DELIVER, written, manifest, bool(options.wheels))
    return manifest


def _write_delivery(folder: Path, nodes: Sequence[tuple[NodeFacts, Target]], manifest: Manifest, wheels: bool) -> None:
    """What brings the bundles to other machines."""
    most = sum(_at_a_time(manifest, pipeline) for pipeline in manifest.pipeline)
    files = render_fleet(nodes, kind=manifest.program.kind, version=__version__, most=most, wheels=wheels)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(mode_of(path))


def _at_a_time(manifest: Manifest, pipeline: Pipeline) -> int:
    """Sequences, or calls of a graph, that are at work in a pipeline; more would wait there for their turn."""
    if manifest.space is None:
        return 2 * len(pipeline.stages)
    return at_work({manifest.stage[placed.stage].backend for placed in pipeline.stages}, manifest.space.streams)


def installed_on(plan: Plan, options: Options) -> dict[str, tuple[Target, bool]]:
    """The nodes that get a bundle: of each its target with the back end that it got, and whether the head is there."""
    used = {member.node.name: member.target for member in plan.members}
    found = {}
    for node in options.fleet.nodes:
        head = node.name == options.fleet.head
        if node.name in used or head:
            known = used.get(node.name) or load_target(node.target, options.targets_dir)
            found[node.name] = (known.on(known.backend), head)  # one that holds no stage needs no more
    return found


def _program(contents: Contents) -> ProgramEntry:
    program, decoder = contents.program, contents.program.decoder
    graph = program.model.graph
    # The stages know more than the file may say: types that were inferred or seen, a name for every open dimension.
    # Who makes a tensor knows the most.
    known = {tensor.name: tensor for _, spec in contents.lowered.stages for tensor in spec.inputs}
    known |= {tensor.name: tensor for _, spec in contents.lowered.stages for tensor in spec.outputs}

    def ports(values: Sequence[ir.Value]) -> list[Tensor]:
        return [] if decoder else [known.get(str(value.name)) or _tensor(value) for value in values]

    return ProgramEntry(
        name=program.name,
        kind="decoder" if decoder else "graph",
        source=program.source.path,
        source_sha256=program.source.sha256,
        architecture=decoder.architecture if decoder else "",
        quant=contents.quant,
        activations=contents.activations,
        precision=program.precision,
        inputs=ports(graph.inputs),
        outputs=ports(graph.outputs),
        vocab=decoder.vocab if decoder else 0,
        context=decoder.context if decoder else 0,
        eos=list(decoder.eos) if decoder else [],
        files={name: sha256(data).hexdigest() for name, data in sorted(program.head_files.items())},
        loss=dict(contents.loss),
        samples=list(contents.choices),
    )


def _tensor(value: ir.Value) -> Tensor:
    """An input that no stage reads, as the file has it."""
    assert value.name is not None and value.type is not None
    extents = value.shape if value.shape is not None else ()
    dims = named_dims(value.name, tuple(each if isinstance(each, int) else each.value for each in extents))
    return Tensor(name=value.name, dtype=spelt(value.type), shape=list(dims))


def _predictions(plan: Plan, division: Division) -> Predictions:
    """What was promised; of a stage that several nodes hold, the first one's time."""
    figures = plan.figures
    rate = figures.get("predicted_tokens_per_s", figures.get("predicted_items_per_s"))
    predicted = {stage["node"]: stage["predicted_ms"] for stage in figures["stages"]}
    return Predictions(
        cost_source=figures["cost_source"],
        bottleneck_ms=figures["bottleneck_ms"],
        lower_bound_ms=figures["lower_bound_ms"],
        gap=figures["gap"],
        stage_ms=[predicted[member.node.name] for _, member in division.stages],
        rows=plan.rows,
        tokens_per_s=float(rate or 0.0),
        verdict=figures["verdict"],
        expected=list(plan.expected),
        streams=[streams for streams, _ in plan.rates],
        per_s=[round(rate, 4) for _, rate in plan.rates],
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
    bundle: Path, program: Program, manifest: Manifest, nodes: Nodes, name: str, keys: KeyPair, target: Target
) -> NodeFacts:
    """Write what a bundle holds beside its stage: the manifest, and the node's own files; of which facts."""
    (bundle / NODE).mkdir(parents=True, exist_ok=True)
    (bundle / MANIFEST).write_bytes(dump_manifest(manifest))
    (bundle / NODE / NODES).write_bytes(dump_nodes(nodes))
    (bundle / NODE_NAME).write_text(name + "\n", "utf-8")
    write_keys(bundle / SECRET_KEY, keys)
    address, entry, place = nodes.address_of(name), manifest.node_named(name), manifest.place_of(name)
    beside = manifest.pipeline[place[0]].stages if place else []
    facts = NodeFacts(
        model=program.name,
        id=manifest.id,
        node=name,
        stage=beside.index(place[1]) if place else None,
        stages=len(beside),
        head=name == manifest.head.node,
        head_node=manifest.head.node,
        address=address.address,
        port=address.port,
        cpus=tuple(entry.cpus),
        threads=entry.threads,
    )
    for path, data in render_node(target, facts).items():
        (bundle / NODE / path).parent.mkdir(exist_ok=True)
        (bundle / NODE / path).write_bytes(data)
        (bundle / NODE / path).chmod(mode_of(path))
    if name == manifest.head.node and program.head_files:
        (bundle / HEAD).mkdir(parents=True, exist_ok=True)
        for path, data in program.head_files.items():
            (bundle / HEAD / path).write_bytes(data)
    return facts


def _keys(work: Path, options: Options) -> dict[str, KeyPair]:
    """The link keys of every node: the fleet's, or new ones where it has none.

    Keys beside a fleet file stay where they are. Others live in the build; all that the old build had go into the
    new one, those of nodes that it leaves out too, or a node that comes back would be a stranger.

    Raises:
        InputError, IntegrityError: a key file that is none, or that others can read.
    """
    kept = options.keys
    place = kept if options.fleet.path is not None else work / KEYS_DIR
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    found = {path.name.removesuffix(_SECRET): read_keys(path) for path in sorted(kept.glob(f"*{_SECRET}"))}
    for node in options.fleet.nodes:
        if node.name not in found or options.new_keys:
            found[node.name] = make_keypair()
    for name, keys in found.items():
        write_keys(place / f"{name}{_SECRET}", keys)
    return found
