"""OpenVINO's forms of a stage by the names of their back ends, and where a stage of each is to run; without OpenVINO.

A stage is lowered for a kind of device, and that is where it runs. Nothing falls back to another one by itself: what
is not here is an error that says what is. Where a person wants it elsewhere, ``RUVRUN_DEVICE`` says so: ``GPU.1`` for
the second of two, or ``CPU``, on whose kernels every form runs, more slowly; there with numbers of 32 bits.

The machine that builds need not have what it builds for. So what it computes itself, golden values and comparisons, it
computes on the CPU (``on_cpu``), whatever else it has: they are the same from every machine that builds.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ruvrun.backends import CPU, device_for
from ruvrun.bundle import StageSpec

VARIABLE = "RUVRUN_DEVICE"
"""The environment variable that moves stages for a GPU or an NPU to another device."""

DEVICE = "DEVICE"
"""An option that no bundle has: a stage that is run elsewhere than it is for."""


def on_cpu(spec: StageSpec) -> StageSpec:
    """The stage, to be run on the CPU whatever it is for."""
    if device_for(spec.backend) in ("", CPU):
        return spec
    return msgspec.structs.replace(spec, options={**spec.options, DEVICE: CPU})


def all_on_cpu(stages: Sequence[tuple[Path, StageSpec]]) -> list[tuple[Path, StageSpec]]:
    """``on_cpu`` for stages with their directories."""
    return [(directory, on_cpu(spec)) for directory, spec in stages]


def device_of(spec: StageSpec) -> str:
    """Where a stage is to run."""
    return spec.options.get(DEVICE) or moved_to(spec.backend) or CPU


def moved_to(backend: str) -> str:
    """Where stages for a GPU or an NPU are to run here, by the name of their back end; empty for all others."""
    kind = device_for(backend)
    return "" if kind in ("", CPU) else os.environ.get(VARIABLE, "") or kind
