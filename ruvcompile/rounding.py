"""What rounding activations to 8 bits makes of a stage.

Quantised products may round the activations that they read, and do so where the CPU has instructions for it: OpenVINO
where it has VNNI, ONNX Runtime on every PC, and on Arm where it has the dot product. Elsewhere they leave them as they
are. Both are right. Which of them a node will do nobody knows while its bundle is built: a target names the least that
its CPUs have. So the distance between the two, on the inputs of the golden check, is a part of what a node's answer may
differ by. Of a large model that was trained it is a hundredth of the largest value, of a small random one a tenth.

It is measured: the stage is run once more, with activations as they are. A machine that builds for OpenVINO and has no
VNNI sees no distance there; it takes that of ONNX Runtime, another number of the same size.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import onnx_ir as ir

from ruvcompile.lower.edit import integer
from ruvcompile.parts import Parts, Stage, run_stage
from ruvcompile.passes.quantise import ACCURACY
from ruvcompile.passes.scope import all_nodes
from ruvrun.bundle import StageSpec
from ruvrun.elements import STRING, Value, element_of, is_float, largest_difference
from ruvrun.pipeline.selfcheck import largest_of, size_of

_ROUNDS_EVERYWHERE = "onnxruntime"
_GROUPS, _NONE = "DYNAMIC_QUANTIZATION_GROUP_SIZE", "0"
_LEVEL = "accuracy_level"
_PLAIN = "unrounded.onnx"


def rounding_distance(
    parts: Parts, number: int, inputs: Mapping[str, Value], outputs: Mapping[str, Value], random: Collection[str]
) -> float:
    """The largest difference that rounding makes in the floats that a stage gives; 0.0 where nothing is rounded.

    Args:
        parts: the stages.
        number: the stage.
        inputs: what it is run on.
        outputs: what it gave for them.
        random: names of outputs that are left to chance.
    """
    directory, spec = parts.stages[number]
    if not _rounds(directory, spec):
        return 0.0
    plain = run_stage(unrounded(parts.of(number)), spec, inputs)
    found = _distance(spec, outputs, plain, random)
    if not found and spec.kind == "decoder" and spec.backend != _ROUNDS_EVERYWHERE:
        rounded = run_stage(parts.of(number, _ROUNDS_EVERYWHERE), spec, inputs)
        plain = run_stage(unrounded(parts.of(number, _ROUNDS_EVERYWHERE)), spec, inputs)
        found = _distance(spec, rounded, plain, random)
    return found


def unrounded(stages: Iterable[Stage]) -> Iterator[Stage]:
    """The stages, with activations as they are; each is there until the next one is asked for."""
    for directory, spec in stages:
        if spec.backend != _ROUNDS_EVERYWHERE:
            yield directory, msgspec.structs.replace(spec, options={**spec.options, _GROUPS: _NONE})
            continue
        model = ir.load(directory / spec.model)
        for node in _rounding(model):
            node.attributes.add(ir.AttrInt64(_LEVEL, ACCURACY["float"]))
        path = directory / _PLAIN  # beside its weights
        path.write_bytes(ir.serde.serialize_model(model).SerializeToString())
        try:
            yield directory, msgspec.structs.replace(spec, model=_PLAIN)
        finally:
            path.unlink()


def _rounds(directory: Path, spec: StageSpec) -> bool:
    """Whether a stage asks for activations that are rounded."""
    if spec.backend == _ROUNDS_EVERYWHERE:
        return any(_rounding(ir.load(directory / spec.model)))
    return spec.options.get(_GROUPS, _NONE) != _NONE


def _rounding(model: ir.Model) -> Iterator[ir.Node]:
    """The nodes that ask for it."""
    for node in all_nodes(model.graph):
        if integer(node, _LEVEL) == ACCURACY["int8"]:
            yield node


def _distance(spec: StageSpec, one: Mapping[str, Value], other: Mapping[str, Value], random: Collection[str]) -> float:
    """The least bound within which both agree (``ruvrun.pipeline.selfcheck``), as far as they can be compared."""
    largest, whole = 0.0, largest_of(spec, one)
    for port in spec.outputs:
        dtype, left, right = element_of(port.dtype), one[port.name], other[port.name]
        if port.name in random or dtype == STRING or not is_float(dtype):
            continue
        if isinstance(left, np.ndarray) and isinstance(right, np.ndarray) and left.shape == right.shape:
            pairs = [(left, right, 1.0)]
            if spec.kind == "decoder":
                pairs = [(token, other, size_of(token, whole)) for token, other in zip(left, right, strict=True)]
            found = [largest_difference(token, other, dtype) / size for token, other, size in pairs]
            largest = max([largest, *filter(math.isfinite, found)])
    return largest
