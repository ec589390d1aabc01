"""A stage's intermediate representation, as the bundle holds it: a graph, and its constants in several files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openvino as ov

from ruvrun.bundle import StageSpec
from ruvrun.elements import Array
from ruvrun.errors import InputError
from ruvrun.executors.pages import zeroed

PAGE = 4096
"""The files of a stage's constants are put one behind the other, each at a multiple of this."""


def read_stage(core: Any, directory: Path, spec: StageSpec) -> Any:
    """The ``openvino.Model`` of a decoder stage."""
    return core.read_model((directory / spec.model).read_bytes(), ov.Tensor(_constants(directory, spec)))


@contextmanager
def loading(spec: StageSpec) -> Iterator[None]:
    """What goes wrong inside is told as one error of ours."""
    try:
        yield
    except RuntimeError as error:
        raise InputError(
            "stage-not-loadable",
            f"OpenVINO cannot load {spec.model}",
            context=[line for line in str(error).splitlines() if line.strip()][:6],
            hint="build again with this version",
        ) from None


def _constants(directory: Path, spec: StageSpec) -> Array:
    """The files of constants in the order of the bundle, each from a multiple of ``PAGE`` on."""
    files = [file for file in spec.files if file.path.startswith("weights/")]
    joined = zeroed(sum(-(-file.bytes // PAGE) * PAGE for file in files))
    at = 0
    for file in files:
        with (directory / file.path).open("rb") as stream:
            stream.readinto(joined[at : at + file.bytes])  # type: ignore[arg-type]  # an array is a buffer
        at += -(-file.bytes // PAGE) * PAGE
    return joined
