"""The table of contents of the compiler: every step, in order.

1. load       any supported file -> a program in canonical form, float weights, lazy
2. passes     canonicalise the graph, make signed activations unsigned, and signed weights such that a node may make
              them unsigned; quantise a decoder's weights, once, for all nodes
3. samples    inputs for a graph with open shapes, and the types of its inner tensors
4. disk       is there room for what will be written
5. measure    a cost row for every unit on every kind of node; nothing is run where the given tables hold them all
6. settle     plan: shape, nodes and cuts, from those rows; lower each stage for its back end, weights by content;
              golden: each stage's self-check; run the stages together, and plan again until the plan's promise holds;
              where links round what they carry: is the answer still within bounds
7. loss       the quantised program against the file
8. emit       bundles, manifest, addresses, costs, report, wheels; all at once, by rename

A model may be larger than the memory: no step has more of it there than a few layers.

For a target with an accelerator of its own, the graph is cut for that instead (``accelerator``), after step 3.
``plan`` ends with the first plan of step 6 and writes nothing. ``probe`` writes one piece of each shape of what step 2
makes. ``verify`` compares a build with the uncut model, with what its weights mean and with its source.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ruvcompile import report as reporting
from ruvcompile.accelerator import build_parts, plan_parts, target_of
from ruvcompile.disk import check_disk
from ruvcompile.emit import installed_on
from ruvcompile.errors import UsageError, model_not_finite
from ruvcompile.front import Front, read_model
from ruvcompile.load import load
from ruvcompile.lower.sheet import Keyed
from ruvcompile.lower.weights import WeightStore
from ruvcompile.make import Maker
from ruvcompile.measure.fleet import measure_fleet
from ruvcompile.measure.given import read_given
from ruvcompile.measure.hint import cost_hint
from ruvcompile.measure.threads import as_measured
from ruvcompile.options import Options
from ruvcompile.parts import Parts
from ruvcompile.passes import run as run_passes
from ruvcompile.passes.pieces import program_units, unit_keys
from ruvcompile.passes.reduced import reduced
from ruvcompile.plan import Facts, Member, Plan, check_cores, check_shape, context_for, members
from ruvcompile.plan.defaults import chosen_defaults
from ruvcompile.plan.rules import Rules, rules_of
from ruvcompile.probe import PROBE_BYTES, write_probe
from ruvcompile.progress import Progress
from ruvcompile.settle import settle
from ruvcompile.settle.links import build_with_links, with_link_type
from ruvcompile.simulate import simulated
from ruvcompile.targets import fleet_targets
from ruvcompile.verify import compare, record, source_loss
from ruvcompile.wheels import check_wheels, place_wheels, shelf_of
from ruvcompile.workspace import workspace
from ruvrun.costs import CostTable, costs_json, table_at, write_costs
from ruvrun.machine import allowed, cores, peak_bytes
from ruvrun.manifest import MANIFEST
from ruvrun.profile.draw import is_probe
from ruvrun.scratch import scratch_folder


def build(options: Options, progress: Progress) -> dict[str, Any]:
    """Build what the options say; the JSON object of ``ruvcompile build``."""
    start = time.monotonic()
    options.fleet.require_addresses()
    if (target := target_of(options)) is not None:
        return build_parts(target, options, progress)
    shelf = shelf_of(options)
    with workspace(options.output, (options.model, options.fleet.path, options.inputs)) as work:
        check_wheels(options, fleet_targets(options), progress, shelf)
        front, store = read_model(options, progress), WeightStore(work / "store")
        candidates, rules = _candidates(front, options)
        check_disk(work, front.program, front.units, options.stages or len(candidates))
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            facts = _facts(front, candidates, rules, options, store, Path(scratch), progress)
        maker = Maker(front, options, work, store, progress)
        with tempfile.TemporaryDirectory(dir=work) as scratch:
            settled, lowered, equality = build_with_links(facts, maker.settled, Path(scratch), progress)
        plan, costs = settled.plan, settled.costs
        hint = _hint(plan, costs, options, progress)
        _tell_defaults(plan, options, progress)
        loss = _loss(front, lowered.chains[0], progress)
        store.remove()
        manifest = maker.write(plan, lowered, costs, loss)
        if equality:
            record(work / MANIFEST, equality)
        reporting.write(work, manifest, reporting.gather(front.program, front.types, plan), costs)
        place_wheels(work, installed_on(plan, options), options, progress, shelf)
    return {
        "id": manifest.id,
        **plan.figures,
        **hint,
        "loss": loss or None,
        "manifest": str(options.output / MANIFEST),
        "seconds": round(time.monotonic() - start, 2),
        "peak_rss_bytes": peak_bytes(),
    }


def plan(options: Options, progress: Progress) -> dict[str, Any]:
    """What ``build`` would do; writes nothing that stays."""
    if (target := target_of(options)) is not None:
        return plan_parts(target, options, progress)
    with scratch_folder("ruvcompile") as directory:
        store = WeightStore(directory / "store")
        front = read_model(options, progress)
        candidates, rules = _candidates(front, options)
        facts = _facts(front, candidates, rules, options, store, directory / "scratch", progress)
        settled = settle(with_link_type(facts, progress), front.samples, None, progress)
    made = settled.plan
    hint = _hint(made, settled.costs, options, progress)
    _tell_defaults(made, options, progress)
    return {"id": None, **made.figures, **hint, **simulated(made.forecast, options)}


def probe(options: Options, progress: Progress) -> dict[str, Any]:
    """Write what `ruvrun profile` measures on a machine before any model is copied; the JSON object of ``probe``."""
    (target,) = fleet_targets(options).values()
    with workspace(options.output, (options.model, options.inputs), ours=is_probe, what="probe") as work:
        front = read_model(options, progress)
        program, units, keys = front.program, front.units, front.keys
        if program.decoder is not None:
            program = reduced(program, units, keys, PROBE_BYTES)
            units = program_units(program)
            keys = unit_keys(program, units)
        with progress.step("probe"):
            made = write_probe(
                program,
                Keyed(units, keys),
                work,
                target=target,
                threads=target.cores or cores(),
                quant=options.quant,
                types=front.types,
                samples=front.samples,
            )
    return {"probe": str(options.output), **made}


def profile(options: Options, progress: Progress) -> dict[str, Any]:
    """Measure what a build would measure, into a cost table; the JSON object of ``profile``."""
    start, before = time.monotonic(), table_at(options.output)
    if others := [node for node in options.fleet.nodes if not node.local]:
        what = f"{others[0].name} is another machine, a {others[0].target}: only what runs here is measured"
        hint = f"say how many work here, as in --target host --nodes {len(options.fleet.nodes)}; or make a probe for it"
        raise UsageError("profile-elsewhere", what, hint=f"{hint}: ruvcompile probe MODEL --target {others[0].target}")
    with scratch_folder("ruvcompile") as directory:
        front = read_model(options, progress)
        candidates, rules = _candidates(front, options)
        store = WeightStore(directory / "store")
        costs = _facts(front, candidates, rules, options, store, directory / "scratch", progress).costs
    write_costs(options.output, [before, costs])
    return {"costs": str(options.output), "seconds": round(time.monotonic() - start, 2), **costs_json(costs)}


def verify(manifest_path: Path, model: Path | None, progress: Progress, tokens: int | None = None) -> dict[str, Any]:
    """A build against the uncut model, what its weights mean, and its source; the JSON object of ``verify``."""
    return compare(manifest_path, model, lambda path: run_passes(load(path)), cores(), progress, tokens)


def report(manifest_path: Path, run: Path | None) -> Path:
    """Write ``report.html`` beside the manifest again, with a run of ``ruvrun bench`` beside the plan."""
    return reporting.rewrite(manifest_path, run)


def _candidates(front: Front, options: Options) -> tuple[tuple[Member, ...], Rules]:
    """The nodes that may hold a stage, and what the fleet's rules say of each; what cannot be is refused here."""
    context_for(front.program, options)
    check_cores(options.fleet.nodes, allowed())
    rules = rules_of(options.fleet, front.program, front.units)
    check_shape(options, front.units, len(rules.nodes), rejected=rules.rejected)
    return members(options, fleet_targets(options), allowed(), rules.nodes), rules


def _facts(
    front: Front,
    candidates: Sequence[Member],
    rules: Rules,
    options: Options,
    store: WeightStore,
    scratch: Path,
    progress: Progress,
) -> Facts:
    """Measure what is not known; everything that a plan is made from."""
    machines = {member.target.name: member.target.machine for member in candidates}
    known, told = read_given(options.costs, set(front.keys), machines, options.streams or 0)
    candidates, chosen = as_measured(front.program, front.keys, known, candidates)
    for text in (*told, *chosen):
        progress.note(text)
    costs = measure_fleet(
        front.program,
        front.units,
        front.keys,
        known,
        candidates,
        front.samples,
        store=store,
        scratch=scratch,
        progress=progress,
        types=front.types,
        most_rows=options.streams or 0,  # of a step, where one stage holds the whole model
    )
    return Facts(
        front.program,
        front.units,
        front.keys,
        front.types,
        tuple(candidates),
        costs,
        options,
        cores(),
        barred=rules.barred,
        held=rules.held,
        rejected=rules.rejected,
    )


def _tell_defaults(plan: Plan, options: Options, progress: Progress) -> None:
    """What was chosen for want of an answer."""
    if found := chosen_defaults(plan, options):
        progress.note(", ".join(f"{text} (default)" for text in found))


def _hint(plan: Plan, costs: CostTable, options: Options, progress: Progress) -> dict[str, Any]:
    """How scaled costs would become measured ones, told, and for the JSON of the command.

    It is in no file of a build: it names files of whoever gave the command.
    """
    if not (hint := cost_hint(options, plan.members, costs)):
        return {}
    progress.note("costs are scaled from this machine; to plan with measured ones:")
    for line in hint:
        progress.note(f"  {line}")
    return {"cost_hint": hint}


def _loss(front: Front, parts: Parts, progress: Progress) -> dict[str, float]:
    """The quantised program against the file, measured and told; empty where nothing was quantised."""
    if front.program.model is front.source.model:
        return {}
    loss = source_loss(front.source, parts.all(), cores(), progress)
    if not math.isfinite(loss["kl"]):
        raise model_not_finite(front.source.source.path)
    progress.note(
        f"loss against the file: KL {loss['kl']:.4f}, same first choice {100 * loss['top1']:.1f} % "
        f"of {loss['tokens']:.0f} tokens"
    )
    return loss
