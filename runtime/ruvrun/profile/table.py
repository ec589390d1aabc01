"""From a bundle, a build or a probe to a cost table: every unit measured once, and what a step costs beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ruvrun import machine
from ruvrun.bundle import BUNDLE, StageSpec, find_bundles, load_spec, verify_bundle
from ruvrun.costs import NOISY, CostTable, Overhead, UnitCost, merge
from ruvrun.errors import InputError, UsageError
from ruvrun.executors import back_end
from ruvrun.manifest import LOCAL, MANIFEST, load_manifest
from ruvrun.placement import manifest_path, read_nodes, require_node
from ruvrun.profile import decoder, graph
from ruvrun.profile.alone import stand_alone
from ruvrun.profile.beside import company, with_cores
from ruvrun.profile.conditions import Conditions, Tell, silent
from ruvrun.profile.draw import PROBE, drawn, is_probe, load_probe
from ruvrun.profile.overhead import measure_overhead
from ruvrun.profile.places import ground
from ruvrun.profile.provenance import provenance
from ruvrun.profile.rates import RATED, measure_rates
from ruvrun.profile.sheet import Sheet, load_sheet
from ruvrun.scratch import scratch_folder

_HERE = "host"
"""The target whose stages are processes of one machine; those of any other talk over a network."""

MOST_NODES = 5000
"""Of a graph whose overhead is measured: a larger one takes long to load again, and its calls long beside that."""

MOST_PACKED = 2.5
"""Bytes in memory for a byte of a weight, at most: itself, once more as kernels want it, and the graph around it."""


@dataclass(frozen=True)
class Segment:
    """A stage that is measured: its bundle, which has been checked, and whether its links are between machines."""

    directory: Path
    spec: StageSpec
    network: bool


@dataclass(frozen=True)
class Profile:
    """What was measured, and sentences that a person should read with it."""

    table: CostTable
    notes: tuple[str, ...]


@contextmanager
def segments(path: Path, node: str | None = None) -> Iterator[tuple[str, list[Segment]]]:
    """The stages at ``path``, a bundle, a build's manifest or folder, or a probe; and the model's name.

    Args:
        node: only this node's, where there are several.

    Raises:
        InputError: there is none, or it is not what it should be.
        UsageError: there is no such node.
    """
    directory = path if path.is_dir() else path.parent
    alone = is_probe(directory) or ((directory / BUNDLE).is_file() and not (directory / MANIFEST).is_file())
    if alone and node is not None:
        raise UsageError("node-unknown", f"{directory} is of no node", hint="leave --node out")
    if is_probe(directory):
        with drawn(directory) as whole:
            spec = load_spec(whole)
            yield load_probe(directory).model, [Segment(whole, spec, network=spec.target != _HERE)]
        return
    if alone:
        spec = load_spec(directory)
        if absent := [file.path for file in spec.files if not (directory / file.path).is_file()]:
            what = f"{directory} is no whole probe: {PROBE} is not there, and neither is {absent[0]}"
            raise InputError("probe-not-whole", what, hint="copy the whole folder again")
        yield "", [Segment(directory, spec, network=False)]
        return
    path = manifest_path(path)
    manifest = load_manifest(path)
    require_node(manifest, node)
    nodes = read_nodes(path)
    found: dict[int, Segment] = {}
    for name, bundle in find_bundles(path, manifest).items():
        place = manifest.place_of(name)
        if place is not None and place[1].stage not in found and node in (None, name):
            spec = verify_bundle(bundle, manifest, place[1].stage)
            found[place[1].stage] = Segment(bundle, spec, nodes.address_of(name).address != LOCAL)
    if not found:
        raise InputError(
            "bundle-missing",
            f"no stage {f'of {node} ' if node else ''}lies beside {path}",
            hint="give a bundle directory",
        )
    yield manifest.program.name, [found[stage] for stage in sorted(found)]


def profile(
    stages: list[Segment],
    conditions: Conditions,
    *,
    model: str = "",
    figures: bool = False,
    tell: Tell = silent,
) -> Profile:
    """Measure the units of all ``stages``, and where one of them is a whole program, its overhead.

    Args:
        stages: whose bundles have been checked.
        conditions: how.
        model: name of the program, for the provenance.
        figures: whether to measure what the machine itself can do, too (``rates``).
        tell: told of progress.

    Raises:
        RuvError: a stage cannot run here.
    """
    conditions = with_cores(conditions)
    kinds = {(segment.spec.target, segment.spec.backend): segment.spec for segment in stages}
    for spec in kinds.values():
        back_end(spec)
    sources = {backend: provenance(backend, model, conditions.threads) for _, backend in kinds}
    notes: list[str] = []
    if conditions.threads > machine.cores():
        told = f"{conditions.threads} threads are to work on {machine.cores()} cores, and wait for one another"
        notes.append(f"{told}: measure on a machine of this kind")
    if conditions.cpus:
        machine.pin(conditions.cpus[0])
    known: set[tuple[str, str, str]] = set()
    tables: list[CostTable] = []
    for segment in stages:
        spec, sheet = segment.spec, load_sheet(segment.directory, segment.spec)
        if known.issuperset((unit.key, spec.target, spec.backend) for unit in sheet.unit):
            continue
        with company(segment.directory, conditions) as ready:
            measured, overhead = _measure(segment, sheet, conditions, ready, tell)
        rows = [row for row in measured if (row.key, row.target, row.backend) not in known]
        known |= {(row.key, row.target, row.backend) for row in rows}
        source = [sources[spec.backend]]
        tables.append(CostTable(provenance=source, unit=rows, overhead=[overhead] if overhead else []))
    worst = max((row.spread for table in tables for row in table.unit), default=0.0)
    if worst > NOISY:
        notes.append(f"noisy: steps spread by {100 * worst:.0f} % here; measure again when less runs on this machine")
    if not any(segment.spec.first and segment.spec.last for segment in stages):
        notes.append(
            "no stage here is a whole model, so what a step costs beside its units was not measured: use a probe"
        )
    for target, backend in kinds if figures else ():
        if backend not in RATED:
            notes.append(f"what this machine itself can do, which costs are scaled by, is not measured on {backend}")
            continue
        rates = measure_rates(target, backend, conditions.threads, tell=tell)
        tables.append(CostTable(provenance=[sources[backend]], rate=rates))
    return Profile(merge(tables), tuple(notes))


def _measure(
    segment: Segment, sheet: Sheet, conditions: Conditions, ready: Callable[[], None], tell: Tell
) -> tuple[list[UnitCost], Overhead | None]:
    """The rows of one stage, and its overhead where it is a whole program; ``ready`` waits until the company works."""
    directory, spec = segment.directory, segment.spec
    if not conditions.brief or spec.kind == "graph":
        ready()
    inputs = None
    if spec.kind == "graph":
        inputs = {name: value for name, value in graph.graph_inputs(directory, spec).items() if value is not None}
    overhead, count = None, None
    if spec.first and spec.last and len(sheet.node) <= MOST_NODES and not conditions.brief:
        with scratch_folder("ruvrun") as folder:
            alone = stand_alone(directory, spec, folder, context=sheet.context, network=segment.network)
            overhead, count = measure_overhead(alone, conditions, network=segment.network, inputs=inputs, tell=tell)
    if spec.kind == "graph":
        back_end(spec)
        overhead = _of_process(spec, conditions, machine.peak_bytes()) if conditions.brief else overhead
        return graph.measure_graph(directory, spec, sheet, conditions, tell), overhead
    where = ground(spec, sheet.context, conditions.rows)
    held = [decoder.load(directory, spec, where, conditions.threads, counting=conditions.brief)]
    ready()
    bare, grown = held[0].bare, held[0].grown
    rows = decoder.measure_decoder(directory, spec, sheet, held, where, conditions, tell)
    if count is not None:
        grown = count.loaded_bytes - count.bare_bytes
    rows, beyond = resident(rows, sheet, grown)
    if conditions.brief:
        overhead = _of_process(spec, conditions, bare)
    if overhead is not None:
        overhead = msgspec.structs.replace(overhead, runtime_bytes=overhead.runtime_bytes + beyond)
    return rows, overhead


def _of_process(spec: StageSpec, conditions: Conditions, bare: int) -> Overhead:
    """What is known of a stage's process without a ring: ``bare``, the bytes it takes with nothing loaded."""
    return Overhead(
        kind=spec.kind,
        target=spec.target,
        backend=spec.backend,
        threads=conditions.threads,
        beside=conditions.beside,
        runtime_bytes=bare,
        source=0,
    )


def resident(rows: list[UnitCost], sheet: Sheet, grown: int) -> tuple[list[UnitCost], int]:
    """The rows with their part of what a process grew by when it loaded all units of ``sheet``; and what is no part.

    Weights grow when they are packed, to less than ``MOST_PACKED`` times what they were; beyond that, which only a tiny
    model shows, it is the back end's own, whatever it loads.
    """
    whole = sum(unit.weight_bytes for unit in sheet.unit) + sheet.shared_bytes
    share = min(grown / whole, MOST_PACKED) if whole else 0.0
    found = [msgspec.structs.replace(row, resident_bytes=round(row.weight_bytes * share)) for row in rows]
    return found, max(0, grown - round(share * whole))
