"""Cut a graph for a machine with an accelerator, and build what can be built here; the steps in order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ruvcompile.accelerator.able import refusals, worth
from ruvcompile.accelerator.divided import Part, divide
from ruvcompile.accelerator.frozen import freeze
from ruvcompile.accelerator.parts import (
    ACCELERATOR,
    CPU,
    PartList,
    PartOf,
    commands,
    describe,
    is_parts,
    write_parts,
)
from ruvcompile.accelerator.vendor import compile_parts, installed
from ruvcompile.errors import FitError, UsageError
from ruvcompile.front import Front, read_model
from ruvcompile.options import Options
from ruvcompile.passes.infer import observed
from ruvcompile.passes.pieces import program_units
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.targets import Accelerator, Target, fleet_targets
from ruvcompile.whole import run_whole
from ruvcompile.workspace import workspace
from ruvrun.elements import Value

SUFFIX = ".parts"
"""What the folder of the parts is called after: beside where a build would be, whose place it does not take."""


@dataclass(frozen=True)
class Divided:
    """A frozen graph, its units, the parts of them, and what is told of each."""

    model: ir.Model
    units: tuple[Unit, ...]
    parts: tuple[Part, ...]
    listed: PartList


def target_of(options: Options) -> Target | None:
    """The target with an accelerator that the options name; None where they name none.

    Raises:
        UsageError: it is one of several machines: what is cut here stays on one.
    """
    targets = fleet_targets(options)
    found = next((target for target in targets.values() if target.accelerator is not None), None)
    if found is not None and len(options.fleet.nodes) > 1:
        what = f"target {found.name} is one machine: a graph is cut between its accelerator and its CPU"
        raise UsageError("accelerator-alone", what, hint=f"--target {found.name} --nodes 1")
    return found


def plan_parts(target: Target, options: Options, progress: Progress) -> dict[str, Any]:
    """What ``build`` would cut; writes nothing. The JSON object of ``plan`` for such a target."""
    front = _front(target, options, progress)
    return _json(_divided(front, target, progress).listed, target)


def build_parts(target: Target, options: Options, progress: Progress) -> dict[str, Any]:
    """Write the parts, and compile the accelerator's where its compiler is; the JSON object of ``build``.

    Raises:
        FitError: ``accelerator-compiler-missing``: the parts are written, and nothing was compiled; or the model is a
            decoder, or has nothing for the accelerator.
    """
    assert target.accelerator is not None
    front = _front(target, options, progress)
    divided = _divided(front, target, progress)
    folder = options.output.with_name(options.output.name + SUFFIX)
    names = [[name for each in part.units for name in divided.units[each].nodes] for part in divided.parts]
    with workspace(folder, (options.model, options.inputs), ours=is_parts, what="folder of parts") as work:
        write_parts(work, divided.model, names, divided.listed, _values(front, divided), front.types, target)
    result = {**_json(divided.listed, target), "folder": str(folder), "compiled": []}
    if not installed(target.accelerator):
        raise _missing(result, folder, target.accelerator)
    lines = commands(divided.listed.part, target)
    with progress.step("compile", total=len(lines)) as bar:
        result["compiled"] = compile_parts(folder, lines, target.accelerator, bar.advance)
    progress.note(f"ruvrun does not run what it made: {target.accelerator.run}")
    return result


def _front(target: Target, options: Options, progress: Progress) -> Front:
    assert target.accelerator is not None
    front = read_model(options, progress)
    if front.program.decoder is not None:
        what = f"a decoder is not built for the {target.accelerator.name}: it keeps state, and its sizes are open"
        raise FitError("accelerator-decoder", what, hint=target.accelerator.decoders)
    return front


def _divided(front: Front, target: Target, progress: Progress) -> Divided:
    accelerator = target.accelerator
    assert accelerator is not None
    with progress.step("divide"):
        model, sizes = freeze(front.program.model, front.samples, front.types)
        opset = model.graph.opset_imports.get("", 0)
        if opset > accelerator.opset:
            what = f"{front.program.source.path} has opset {opset}"
            what += f", and {accelerator.compiler} reads no newer than {accelerator.opset}"
            raise FitError("accelerator-opset", what, hint=f"export it with opset {accelerator.opset}")
        program = Program(front.program.name, model, front.program.source, None)
        units = program_units(program, front.types)
        why = refusals(model, units, sizes, accelerator)
        able = [not each for each in why]
        parts = divide(units, able, lambda number: worth(model, units[number], accelerator))
    # What has a size in one run only has a rank in all of them.
    listed = describe(model, units, parts, {**observed(front.types), **sizes}, why)
    if not any(part.taken for part in parts):
        what = f"nothing of {front.program.source.path} is for the {accelerator.name}"
        hint = f"build it for a target without one; it is there for {', '.join(accelerator.worth)}"
        raise FitError("accelerator-nothing", what, context=listed[0].why[:4], hint=hint)
    source = front.program.source
    everything = PartList(
        model=front.program.name,
        source_sha256=source.sha256,
        target=target.name,
        accelerator=accelerator.name,
        part=listed,
    )
    return Divided(model, units, tuple(parts), everything)


def _values(front: Front, divided: Divided) -> dict[str, Value]:
    """Inputs, what crosses between the parts, and outputs, of one run of the whole graph."""
    names = list(dict.fromkeys(port.name for part in divided.listed.part for port in (*part.inputs, *part.outputs)))
    copy = divided.model.clone()
    made = {value.name: value for node in copy.graph for value in node.outputs}
    copy.graph.outputs[:] = [made[name] for name in names if name in made]
    return {**{name: front.samples[name] for name in names if name not in made}, **run_whole(copy, front.samples)}


def _json(listed: PartList, target: Target) -> dict[str, Any]:
    return {
        "target": target.name,
        "accelerator": listed.accelerator,
        "parts": [_part(part) for part in listed.part],
        "commands": [line for lines in commands(listed.part, target).values() for line in lines],
    }


def _part(part: PartOf) -> Mapping[str, Any]:
    return {
        "name": part.name,
        "on": part.on,
        "nodes": part.nodes,
        "operators": part.operators,
        "inputs": [port.name for port in part.inputs],
        "outputs": [port.name for port in part.outputs],
        "why": part.why,
    }


def _missing(result: Mapping[str, Any], folder: Path, accelerator: Accelerator) -> FitError:
    counts = {kind: [part["nodes"] for part in result["parts"] if part["on"] == kind] for kind in (ACCELERATOR, CPU)}
    told = [
        f"there is no command `{accelerator.command}` here",
        f"{folder} has the parts as static ONNX: {len(counts[ACCELERATOR])} for the {accelerator.name} "
        f"(of {_nodes(counts[ACCELERATOR])}), {len(counts[CPU])} for the CPU (of {_nodes(counts[CPU])})",
    ]
    return FitError(
        "accelerator-compiler-missing",
        f"{accelerator.compiler} is not installed here, so nothing was compiled for the {accelerator.name}",
        context=told,
        hint=f"{accelerator.where}; then run {folder}/compile.sh where it is installed",
    )


def _nodes(counts: Sequence[int]) -> str:
    return f"{sum(counts)} node{'' if sum(counts) == 1 else 's'}"
