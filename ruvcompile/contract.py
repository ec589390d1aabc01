"""The contract between nodes: what ``manifest.toml`` and ``nodes.toml`` say of a build.

The manifest says what is computed, by whom, and what was promised of it; ``nodes.toml`` says where everybody is, and
may be edited. Both are made here of what the steps before have decided, and nothing is written: that is ``emit``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

import onnx_ir as ir

from ruvcompile.fleet import FleetNode
from ruvcompile.passes.infer import named_dims, spelt
from ruvcompile.plan import Plan
from ruvcompile.program import Program
from ruvcompile.stages import Division, Lowered
from ruvrun.bundle import stage_of
from ruvrun.costs import CostTable
from ruvrun.manifest import Address, Head, Manifest, Node, Pipeline, Placed, Tensor, identify
from ruvrun.manifest import Plan as Predictions
from ruvrun.manifest import Program as ProgramEntry


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


def manifest_of(contents: Contents, nodes: Sequence[FleetNode], head: str, public: Mapping[str, str]) -> Manifest:
    """The manifest of a build for these nodes, whose ``public`` keys are given by name."""
    plan, lowered = contents.plan, contents.lowered
    used = {member.node.name: member for member in plan.members}
    entry = _program(contents)
    made = [
        stage_of(*stage, number=number, graph_nodes=len(lowered.division.stages[number][0].nodes))
        for number, stage in enumerate(lowered.stages)
    ]
    pipelines = [
        Pipeline(stages=[Placed(stage=stage, node=member.node.name) for stage, member in placed])
        for placed in lowered.division.pipelines
    ]
    return Manifest(
        id=identify(entry, made, pipelines),
        program=entry,
        stage=made,
        node=[
            Node(
                name=node.name,
                public_key=public[node.name],
                target=node.target,
                cpus=list(used[node.name].cpus if node.name in used else node.cpus),
                threads=used[node.name].threads if node.name in used else 1,
            )
            for node in nodes
        ],
        pipeline=pipelines,
        head=Head(node=head),
        space=plan.space,
        plan=_predictions(plan, lowered.division),
    )


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


def addresses(nodes: Sequence[FleetNode]) -> list[Address]:
    """Addresses as in the fleet; processes of this machine that name no port of their own get one each."""
    found: list[Address] = []
    for node in nodes:
        port = node.port
        while node.local and any(entry.address == node.address and entry.port == port for entry in found):
            port += 1
        found.append(Address(name=node.name, address=node.address, port=port, ssh=node.ssh))
    return found
