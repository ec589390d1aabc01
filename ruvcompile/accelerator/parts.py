"""Write the parts of a graph that was cut for an accelerator: static ONNX, what they are, and the vendor's commands.

::

    parts.toml      what each part is, and for what machine; a folder with one is ours
    part_0.onnx     a part, with its weights; every size in it is fixed
    values.npz      inputs, what crosses between parts, and outputs, as in one run of the whole graph by ONNX Runtime
    compile.sh      the vendor's commands for the parts that are the accelerator's
    README.md       what to do with all that
    part_0.hef      what the vendor's compiler made of it, where it is installed
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec
import onnx_ir as ir

from ruvcompile.accelerator.divided import Part
from ruvcompile.errors import FitError
from ruvcompile.passes.extract import extract
from ruvcompile.passes.infer import Type, named_dims, spelt
from ruvcompile.passes.inline import inline
from ruvcompile.passes.units import Unit
from ruvcompile.render import SUFFIX, mode_of, render
from ruvcompile.targets import Target
from ruvrun.elements import Value
from ruvrun.manifest import FORMAT, Tensor, dump_toml
from ruvrun.npz import write_npz

PARTS = "parts.toml"
VALUES = "values.npz"
SCRIPT = "compile.sh"
README = "README.md"
ACCELERATOR, CPU = "accelerator", "cpu"
MOST_BYTES = 2**31 - 1
"""Of a file that holds all of a model: the most that the format can say."""


class PartOf(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part: ``on`` the accelerator or the cpu, with how many nodes of which operators.

    ``why`` says what kept nodes on the CPU. ``nodes`` counts those of the frozen graph.
    """

    name: str
    on: str
    nodes: int
    operators: dict[str, int]
    inputs: list[Tensor]
    outputs: list[Tensor]
    why: list[str] = []


class PartList(msgspec.Struct, frozen=True, kw_only=True):
    """All of ``parts.toml``, the parts in the order of computation."""

    model: str
    source_sha256: str
    target: str
    accelerator: str
    part: list[PartOf]
    format: int = FORMAT


def is_parts(folder: Path) -> bool:
    """Whether a folder is one that was written here."""
    return (folder / PARTS).is_file()


def describe(
    model: ir.Model, units: Sequence[Unit], parts: Sequence[Part], types: Mapping[str, Type], why: Sequence[str]
) -> list[PartOf]:
    """What each part is.

    Args:
        model: frozen.
        units: of it.
        parts: of these units.
        types: of its values.
        why: of each unit, why it is not the accelerator's.
    """
    kinds = {str(node.name): node.op_type for node in model.graph}
    found = []
    for number, part in enumerate(parts):
        inside = [units[each] for each in part.units]
        names = [name for unit in inside for name in unit.nodes]
        made = dict.fromkeys(name for unit in inside for name in unit.outputs)
        taken = dict.fromkeys(name for unit in inside for name in unit.inputs if name not in made)
        own = set(part.units)
        read = {name for each, unit in enumerate(units) if each not in own for name in unit.inputs}
        results = {name for unit in inside for name in unit.results}
        found.append(
            PartOf(
                name=f"part_{number}",
                on=ACCELERATOR if part.taken else CPU,
                nodes=len(names),
                operators=dict(sorted(Counter(kinds[name] for name in names).items())),
                inputs=_ports(taken, types),
                outputs=_ports((name for name in made if name in read or name in results), types),
                why=[] if part.taken else list(dict.fromkeys(why[each] for each in part.units if why[each])),
            )
        )
    return found


def write_parts(
    folder: Path,
    model: ir.Model,
    nodes: Sequence[Sequence[str]],
    listed: PartList,
    values: Mapping[str, Value],
    types: Mapping[str, Type],
    target: Target,
) -> None:
    """Write all but what the vendor's compiler makes.

    Args:
        folder: is there, and empty.
        model: frozen.
        nodes: of each part the names of its nodes.
        listed: what the parts are.
        values: of one run: of inputs, of what crosses, of outputs.
        types: of all values in that run.

    Raises:
        FitError: a part is too large for one file.
    """
    assert target.accelerator is not None
    for part, names in zip(listed.part, nodes, strict=True):
        piece = extract(
            model,
            names,
            inputs=[port.name for port in part.inputs],
            outputs=[port.name for port in part.outputs],
            name=part.name,
            types=types,
        )
        inline(piece)
        size = sum(value.const_value.nbytes for value in piece.graph.initializers.values() if value.const_value)
        if size > MOST_BYTES:
            what = f"{part.name} has weights of {size} bytes, and {target.accelerator.compiler} reads one file"
            raise FitError("accelerator-too-large", what, hint="use a smaller model")
        proto = ir.serde.serialize_model(piece)
        (folder / f"{part.name}.onnx").write_bytes(proto.SerializeToString(deterministic=True))
    with (folder / VALUES).open("wb") as stream:
        write_npz(stream, values)
    (folder / PARTS).write_bytes(dump_toml(listed))
    for name, data in render_parts(target, listed.model, listed.part).items():
        (folder / name).write_bytes(data)
        (folder / name).chmod(mode_of(name))


def render_parts(target: Target, model: str, parts: Sequence[PartOf]) -> dict[str, bytes]:
    """The script that compiles the accelerator's parts, and the text that says what to do with it.

    Raises:
        InputError: a template is missing or wrong.
    """
    facts = {"model": model, "accelerator": target.accelerator, "parts": parts, "commands": commands(parts, target)}
    return {name: render(target.template(f"parts/{name}{SUFFIX}"), facts) for name in (SCRIPT, README)}


def commands(parts: Sequence[PartOf], target: Target) -> dict[str, list[str]]:
    """The vendor's commands, by the part that they compile."""
    assert target.accelerator is not None
    steps = target.accelerator.steps
    return {
        part.name: [step.replace("{part}", part.name) for step in steps] for part in parts if part.on == ACCELERATOR
    }


def _ports(names: Iterable[str], types: Mapping[str, Type]) -> list[Tensor]:
    kinds = ((name, types[name]) for name in names)
    return [
        Tensor(name=name, dtype=spelt(ir.TensorType(kind.dtype)), shape=list(named_dims(name, kind.shape)))
        for name, kind in kinds
    ]
