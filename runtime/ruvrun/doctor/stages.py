"""What is to run here: the bundles, the devices they want, the cores they are kept on."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ruvrun import machine
from ruvrun.backends import device_for
from ruvrun.bundle import BUNDLE, load_spec, verify_bundle, verify_head
from ruvrun.doctor.finding import Finding, failed, failure, well
from ruvrun.errors import RuvError
from ruvrun.executors.openvino.forms import VARIABLE
from ruvrun.placement import Placement

_WHY_BYTES = "nothing is loaded that is not, byte for byte, what was built and checked"


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
            yield failed(f"bundle {name}", error, _WHY_BYTES)
            continue
        yield well(f"bundle {name}", f"{len(spec.files)} files are what {BUNDLE} says")
    if placement.head and placement.manifest.program.kind == "decoder":
        try:
            verify_head(placement.head_bundle, placement.manifest.program)
        except RuvError as error:
            yield failed("head files", error, _WHY_BYTES)


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
    yield well("OpenVINO devices", ", ".join(map(str, devices.devices())))
    for name, spec in specs.items():
        try:
            used = devices.used_by(spec)
        except RuvError as error:
            why = "its stage was compiled for that device, and moves to no other by itself"
            yield failed(f"device of {name}", error, why)
            continue
        kind = device_for(spec.backend)
        moved = "" if used.name.startswith(kind) else f"; it is for {kind} and here because {VARIABLE} says so"
        yield well(f"device of {name}", f"its stage runs on {used}{moved}")


def cpus(placement: Placement) -> Iterator[Finding]:
    """Whether the cores that a node is kept on are there."""
    for name in placement.bundles:
        asked = placement.manifest.node_named(name).cpus
        if asked and not set(asked) <= machine.allowed():
            yield failure(
                f"cpus {name}",
                f"cores {asked} are asked for, {sorted(machine.allowed())} may be used",
                "the plan counts on these cores, and a process cannot be kept on others",
                "correct `cpus` of this node in the fleet file, and build again; which there are: nproc --all",
                7,
            )
