"""What this machine has, lacks and must change, before anything is loaded.

Every check is one ``Finding``: what was looked at, how it stands (``ok``, ``warn``, ``fail``), what was seen,
and what to do. Nothing here changes anything, and a check that fails never keeps the others from running.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ruvrun import machine
from ruvrun.bundle import BUNDLE, load_spec, verify_bundle, verify_head
from ruvrun.errors import FitError, RuvError
from ruvrun.executors import LOADERS
from ruvrun.executors.forms import DEVICES, VARIABLE, package_of
from ruvrun.placement import Endpoint, Placement, place, space
from ruvrun.transport.reach import Unreached, try_port

PACKAGES = ("ruvrun", "numpy", "pyzmq", "msgspec", "click")
HEAD_PACKAGES = ("tokenizers", "jinja2", "starlette", "uvicorn")


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. ``exit_code`` is what `serve` would end with because of it."""

    check: str
    state: Literal["ok", "warn", "fail"]
    seen: str
    hint: str | None = None
    exit_code: int = 0


def examine(path: Path, node: str | None, *, peers: bool) -> Iterator[Finding]:
    """Look at everything this invocation would need; yields findings as they come.

    Raises:
        RuvError: there is nothing to look at: no manifest, or no bundle.
    """
    placement = place(path, node)
    yield Finding("python", "ok", f"{platform.python_version()} on {platform.machine()}, {machine.cores()} cores")
    yield from _packages(placement)
    yield from _bundles(placement)
    yield from _devices(placement)
    yield from _memory(placement)
    yield from _cpus(placement)
    yield from _ports(placement)
    if peers:
        yield from _peers(placement)


def to_json(findings: list[Finding]) -> dict[str, Any]:
    """The object of ``doctor --json``."""
    return {"ok": all(finding.state != "fail" for finding in findings), "findings": [asdict(one) for one in findings]}


def reach(name: str, where: Endpoint, timeout: float = 3.0) -> Finding:
    """Whether a peer's link port can be reached, and if not, in which of the ways that need different cures."""
    target = f"{where.host}:{where.port}"
    match found := try_port(where.host, where.port, timeout):
        case None:
            return Finding(f"peer {name}", "ok", f"{target} answers")
        case Unreached("name unknown"):
            hint = "correct its address in nodes.toml, or use its IP number"
            return _unreached(name, f"{where.host}: name unknown", hint)
        case Unreached("timed out"):
            hint = "is it on, and does its firewall let this port through?"
        case Unreached("refused"):
            hint = f"start `ruvrun serve` on {name}, or correct its port"
        case _:
            hint = "check the cable, the network and the address"
    detail = f" ({found.detail})" if found.detail else ""
    return _unreached(name, f"{target}: {found.trouble}{detail}", hint)


def _packages(placement: Placement) -> Iterator[Finding]:
    backends = sorted({stage.backend for stage in placement.manifest.stage})
    for package in PACKAGES:
        yield _package(package, "pip install ruvrun")
    if placement.stages:
        for package in sorted({package_of(backend) for backend in backends if backend in LOADERS}):
            yield _package(package, f"pip install 'ruvrun[{package}]'")
        for backend in backends:
            if backend not in LOADERS:
                yield Finding(f"back end {backend}", "fail", "this version does not know it", "update ruvrun", 3)
    if placement.head:
        for package in HEAD_PACKAGES:
            yield _package(package, "pip install 'ruvrun[head]'")


def _package(name: str, hint: str) -> Finding:
    try:
        return Finding(f"package {name}", "ok", importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError:
        pass
    try:
        found = importlib.import_module(name)
    except ImportError:
        return Finding(f"package {name}", "fail", "not installed", hint, 3)
    return Finding(f"package {name}", "ok", str(getattr(found, "__version__", "version unknown")))


def _bundles(placement: Placement) -> Iterator[Finding]:
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


def _devices(placement: Placement) -> Iterator[Finding]:
    """What OpenVINO sees here, and what of it each stage would use."""
    specs = {}
    for name in placement.stages:
        with contextlib.suppress(RuvError):  # a bundle that cannot be read was told
            specs[name] = load_spec(placement.bundles[name])
    specs = {name: spec for name, spec in specs.items() if spec.backend in DEVICES}
    if not specs:
        return
    try:
        from ruvrun.executors import devices
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
        kind = DEVICES[spec.backend]
        moved = "" if used.name.startswith(kind) else f"; it is for {kind} and here because {VARIABLE} says so"
        yield Finding(f"device of {name}", "ok", f"its stage runs on {used}{moved}")


def _memory(placement: Placement) -> Iterator[Finding]:
    wanted_space = space(placement.manifest, None, None)
    wanted = machine.needs(
        placement.manifest, placement.stages, context=wanted_space.context, streams=wanted_space.streams
    )
    available = machine.memory_available()
    try:
        machine.require_memory(wanted, available, context=wanted_space.context, streams=wanted_space.streams)
    except FitError as error:
        yield Finding("memory", "fail", "; ".join([error.message, *error.context]), error.hint, error.exit_code)
        return
    total = machine.size(sum(need.total for need in wanted))
    yield Finding(
        "memory", "ok", f"{total} needed ({'; '.join(map(str, wanted))}), {machine.size(available)} available"
    )


def _cpus(placement: Placement) -> Iterator[Finding]:
    for name in placement.bundles:
        cpus = placement.manifest.node_named(name).cpus
        if cpus and not set(cpus) <= machine.allowed():
            yield Finding(
                f"cpus {name}",
                "fail",
                f"cores {cpus} are asked for, {sorted(machine.allowed())} may be used",
                "correct `cpus` of this node, and build again",
                7,
            )


def _ports(placement: Placement) -> Iterator[Finding]:
    if placement.whole:
        return  # it needs none
    ports = {f"port of {name}": placement.endpoints.nodes[name].port for name in placement.stages}
    if placement.head:
        ports["port of the head"] = placement.endpoints.head.port
    for what, port in ports.items():
        if machine.port_is_free("0.0.0.0", port):
            yield Finding(what, "ok", f"{port} is free")
        else:
            yield Finding(what, "warn", f"{port} is taken", "end what holds it, unless that is this service", 7)


def _peers(placement: Placement) -> Iterator[Finding]:
    """Who must be reached from here: the head reaches every stage, a stage those of its own pipeline."""
    here = set(placement.bundles)
    ours = {place[0] for name in here if (place := placement.manifest.place_of(name))}
    for name, where in placement.endpoints.nodes.items():
        place = placement.manifest.place_of(name)
        if name not in here and place and (placement.head or place[0] in ours):
            yield reach(name, where)
    if not placement.head:
        yield reach(f"{placement.manifest.head.node} (head)", placement.endpoints.head)


def _unreached(name: str, seen: str, hint: str) -> Finding:
    return Finding(f"peer {name}", "fail", seen, hint, 6)
