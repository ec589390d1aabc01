"""Samples written beside a stage that is to be measured: a golden check that holds inputs and no results."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from ruvcompile.lower.stage import hashed
from ruvrun.bundle import BUNDLE, Golden, StageSpec
from ruvrun.elements import Value
from ruvrun.manifest import dump_toml
from ruvrun.npz import write_npz

FILE = "golden.npz"


def write_inputs(directory: Path, spec: StageSpec, samples: Mapping[str, Value]) -> StageSpec:
    """Write what the stage is run on where nothing is compared.

    Args:
        directory: of the stage.
        samples: inputs of the whole graph; those that the stage takes are kept.

    Returns:
        The spec as it now stands in ``bundle.toml``.
    """
    with (directory / FILE).open("wb") as stream:
        write_npz(stream, {f"in.{tensor.name}": samples[tensor.name] for tensor in spec.inputs})
    spec = msgspec.structs.replace(
        spec, golden=Golden(file=FILE, bound=0.0), files=[*spec.files, hashed(directory, FILE)]
    )
    (directory / BUNDLE).write_bytes(dump_toml(spec))
    return spec
