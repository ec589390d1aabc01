"""What is to run here: the bundles, the devices they want, the cores they are kept on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ruvrun import machine
from ruvrun.backends import device_for
from ruvrun.bundle import BUNDLE, load_spec, verify_bundle, verify_head
from ruvrun.doctor.finding import Finding
from ruvrun.errors import RuvError
from ruvrun.executors.openvino.forms import VARIABLE
from ruvrun.placement import Placement


def bundles(placement: Placement) -> Iterator[Finding]:
    """Whether every byte is what the build wrote."""
    for name in placement.bundles:
        place_of = placement.manifest.place_of(name)
        directory = placement.bundles[name]
        if place_of is None:
            continue
        try:
            spec = verify_bundle(directory, placement.manifest, place_of[1].stage)
        except RuvError as error:
            yield Finding(f"bundle {name}", "fail", error.message, error.hint, error.exit_code)
            continue
        yield Finding(f"bundle {name}", "ok", f"{len(spec.files)} files are what {BUNDLE} says")
    if placement.head and placement.manifest.program.kind == "decoder":
        try:
            verify_head(placement.head_bundle, placement.manifest.program)
        except RuvError as error:
            yield Finding("head files", "fail", error.message, error.hint, error.exit_code)


def devices(placement: Placement) -> Iterator[Finding]:
    """What OpenVINO sees here, and what of it each stage would use."""
    specs = {}
    for name in placement.stages:
        with contextlib.suppress(RuvError):  # a bundle that cannot be read was told
            specs[name] = load_spec(placement.bundles[name])
    specs = {name: spec for name, spec in specs.items() if device_for(spec.backend)}
    if not specs:
        return
    try:
        from ruvrun.executors.openvino import devices
    except ImportError:
        return  # that OpenVINO is missing was told
    yield Finding("OpenVINO devices", "ok", ", ".join(map(str, devices.devices())))
    for name, spec in specs.items():
        try:
            used = devices.used_by(spec)
        except RuvError as error:
            seen = "; ".join([error.message, *error.context])
            yield Finding(f"device of {name}", "fail", seen, error.hint, error.exit_code)
            continue
        kind = device_for(spec.backend)
        moved = "" if used.name.startswith(kind) else f"; it is for {kind} and here because {VARIABLE} says so"
        yield Finding(f"device of {name}", "ok", f"its stage runs on {used}{moved}")


def cpus(placement: Placement) -> Iterator[Finding]:
    """Whether the cores that a node is kept on are there."""
    for name in placement.bundles:
        asked = placement.manifest.node_named(name).cpus
        if asked and not set(asked) <= machine.allowed():
            yield Finding(
                f"cpus {name}",
                "fail",
                f"cores {asked} are asked for, {sorted(machine.allowed())} may be used",
                "correct `cpus` of this node, and build again",
                7,
            )
