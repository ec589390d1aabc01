"""Write a build: bundles, manifest, addresses and costs, into the folder that will appear all at once.

What the hashes cover depends on the stage alone (see ``ruvrun.bundle``); what is a node's own, keys above all,
lies under ``node/`` beside it. Keys belong to the fleet: made once, reused by every build.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from ruvcompile.contract import Contents, addresses, manifest_of
from ruvcompile.options import KEYS_DIR, Options
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.render import DELIVER, NodeFacts, mode_of, render_fleet, render_node
from ruvcompile.stages import copy_stage
from ruvcompile.targets import Target, load_target
from ruvrun import __version__
from ruvrun.backends import at_work
from ruvrun.bundle import BUNDLES, COMPILED, HEAD, NODE, NODE_NAME, SECRET_KEY
from ruvrun.costs import COSTS, dump_costs
from ruvrun.manifest import MANIFEST, NODES, Manifest, Nodes, Pipeline, dump_manifest, dump_nodes
from ruvrun.pipeline import KeyPair, make_keypair, read_keys, write_keys

_SECRET = ".secret"


def write_build(work: Path, contents: Contents, options: Options) -> Manifest:
    """Write all of a build into ``work`` but its stages, which are there, and its report, which needs the manifest."""
    program, plan, lowered = contents.program, contents.plan, contents.lowered
    keys = _keys(work, options)
    used = {member.node.name: member for member in plan.members}
    head = options.fleet.node(options.fleet.head)
    listed = [node for node in options.fleet.nodes if node.name in used or node.name == head.name]
    manifest = manifest_of(contents, listed, head.name, {name: pair.public for name, pair in keys.items()})
    nodes = Nodes(node=addresses(listed))
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
