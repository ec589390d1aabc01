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
from ruvrun.executors.pages import PAGE, mapped


def map_stage(core: Any, directory: Path, spec: StageSpec) -> tuple[Any, Array]:
    """The ``openvino.Model`` of a decoder stage, and its constants, to be kept as long as anything made of the model.

    They lie in the files. Kernels pack most weights for themselves; what they read as it is, rows of an embedding, is
    read from there.
    """
    constants = map_constants(directory, spec)
    model = core.read_model((directory / spec.model).read_bytes(), ov.Tensor(constants, shared_memory=True))
    return model, constants


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


def map_constants(directory: Path, spec: StageSpec) -> Array:
    """The files of constants in the order of the bundle, each from a multiple of ``PAGE`` on."""
    return mapped([(directory / file.path, file.bytes) for file in spec.files if file.path.startswith("weights/")])


__all__ = ["PAGE", "loading", "map_constants", "map_stage"]
