"""A build held against the model that it was made from: what ``ruvcompile verify`` does, and what it makes of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ruvcompile.errors import InputError, IntegrityError, UsageError
from ruvcompile.parts import Stage
from ruvcompile.passes.chance import left_to_chance
from ruvcompile.passes.quantise import ACCURACY, quantise
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.verify.equality import TOKENS, Comparison, measure
from ruvcompile.verify.loss import source_loss
from ruvcompile.verify.record import record
from ruvcompile.verify.staged import LARGE_BYTES, is_bounded, is_mixed, is_rounded, same_chains
from ruvcompile.verify.tensors import tensors_agree
from ruvcompile.verify.uncut import uncut
from ruvcompile.whole import run_whole
from ruvrun.bundle import StageSpec, require_bundles, verify_bundle
from ruvrun.elements import Value
from ruvrun.executors.openvino.forms import all_on_cpu
from ruvrun.manifest import Manifest, load_manifest
from ruvrun.manifest import Program as ProgramEntry
from ruvrun.npz import read_npz
from ruvrun.pipeline import join_local
from ruvrun.scratch import scratch_folder

FEWER_TOKENS = 256
"""Of the text for a model of more than ``LARGE_BYTES``, where nothing else is asked for."""


def compare(
    manifest_path: Path,
    model: Path | None,
    read: Callable[[str], Program],
    threads: int,
    progress: Progress,
    tokens: int | None = None,
) -> dict[str, Any]:
    """Compare a build with the uncut model, with what its weights mean, and with its source.

    Args:
        manifest_path: of a whole build. What is found of pipelines of decoders is written into it.
        model: its source; None to look where the manifest names it.
        read: loads a file into canonical form.
        threads: for the float models.
        tokens: of the text for what the weights mean; None for none, but where back ends are mixed.

    Returns:
        The JSON object of ``ruvcompile verify``.

    Raises:
        InputError: the source or a bundle is not here, or the source is another file.
    """
    manifest = load_manifest(manifest_path)
    chains = dict(_different(manifest_path, manifest))
    with progress.step("load"):
        source = _read_source(manifest_path, manifest.program, model, read)
        program = quantise(source, manifest.program.quant, accuracy=ACCURACY[manifest.program.activations])
        program = replace(program, precision=manifest.program.precision or program.precision)
    if program.decoder is None:
        if tokens:
            what = f"--tokens says nothing about {manifest.program.name}, which is no decoder"
            raise UsageError("option-of-other-models", what, hint="leave it out")
        with progress.step("compare"):
            return _graph(program, manifest.program, [*chains.values()])
    with scratch_folder("ruvcompile") as directory:
        with progress.step("compare"):
            same = same_chains(program, [*chains.values()], directory, threads)
        if tokens is None:
            tokens = _tokens([*chains.values()])
        found = []
        if tokens and not program.decoder.exported:
            found = measure(program, chains, tokens, directory, threads, progress)
            record(manifest_path, found)
    quantised = program.model is not source.model
    loss = source_loss(source, next(iter(chains.values())), threads, progress) if quantised else None
    result = {"identical": same.same, "max_abs_diff": None, "tokens": same.tokens, "cases": same.cases}
    mixed = {"mixed": True} if any(map(is_mixed, chains.values())) else {}
    mixed |= {"rounded": True} if any(map(is_rounded, chains.values())) else {}
    return result | mixed | {"vs_source": loss, **_equality(found)}


def failure(result: Mapping[str, Any]) -> IntegrityError | None:
    """What a comparison comes to: the one error, or None where all is as it must be."""
    beyond = result.get("beyond", [])
    if not result["identical"]:
        what = "the staged model does not compute what the uncut one does"
        if result.get("mixed") or result.get("rounded"):
            what = "what the staged model computes of a sequence depends on its company"
        return IntegrityError("verify-differs", what, context=beyond, hint="report this as a bug")
    if beyond:
        what = "the staged model is further from what its weights mean than it may be"
        hint = "build with --activations float and --kv-type f32, or on one back end"
        if result.get("rounded"):
            hint = "build with --link-type f32"
        return IntegrityError("verify-too-far", what, context=beyond, hint=hint)
    return None


def _different(manifest_path: Path, manifest: Manifest) -> list[tuple[int, list[Stage]]]:
    """Every different pipeline once, with the number of the first of its kind; every bundle is checked.

    Replicas hold the same bytes.
    """
    placed = [entry for pipeline in manifest.pipeline for entry in pipeline.stages]
    bundles = require_bundles(manifest_path, manifest, [entry.node for entry in placed])
    checked = {entry.node: verify_bundle(bundles[entry.node], manifest, entry.stage) for entry in placed}
    first: dict[tuple[int, ...], int] = {}
    for number, pipeline in enumerate(manifest.pipeline):
        first.setdefault(tuple(entry.stage for entry in pipeline.stages), number)
    return [
        (number, [(bundles[entry.node], checked[entry.node]) for entry in manifest.pipeline[number].stages])
        for number in first.values()
    ]


def _read_source(
    manifest_path: Path, entry: ProgramEntry, model: Path | None, read: Callable[[str], Program]
) -> Program:
    source = read(str(model or _find_source(entry.source, manifest_path)))
    if source.source.sha256 != entry.source_sha256:
        raise InputError(
            "model-differs",
            f"{source.source.path} is not the file this was built from",
            context=[f"sha256 {source.source.sha256[:12]}, built from {entry.source_sha256[:12]}"],
            hint="give the right file with --model",
        )
    return source


def _find_source(named: str, manifest_path: Path) -> Path:
    """The model file as the build was told it: from here, else from beside the build."""
    for candidate in (Path(named), manifest_path.parent / named, manifest_path.parent.parent / named):
        if candidate.exists():
            return candidate
    raise InputError("file-missing", f"the model {named} is not here", hint="say where it is with --model")


def _graph(program: Program, entry: ProgramEntry, chains: Sequence[Sequence[Stage]]) -> dict[str, Any]:
    """Any other graph, whole and in stages."""
    inputs = _golden_inputs(chains[0], entry)
    types = {tensor.name: tensor.dtype for tensor in entry.outputs}
    random = left_to_chance(program.model) & types.keys()
    with scratch_folder("ruvcompile") as directory:
        found = [
            tensors_agree(_run(chain, inputs), _uncut(program, chain, inputs, directory / str(number)), types, random)
            for number, chain in enumerate(chains)
        ]
    same, largest = all(same for same, _ in found), max(largest for _, largest in found)
    result = {"identical": same, "max_abs_diff": largest, "tokens": 0, "cases": len(found), "vs_source": None}
    return result | ({"random": sorted(random)} if random else {})


def _run(chain: Sequence[Stage], inputs: Mapping[str, Value]) -> dict[str, Value]:
    return join_local(all_on_cpu(chain), context=0, streams=0).run(inputs)


def _uncut(
    program: Program, chain: Sequence[Stage], inputs: Mapping[str, Value], directory: Path
) -> Mapping[str, Value]:
    """What the uncut graph gives: on the pipeline's own back end where it has one alone, else as the file says.

    Kernels of another back end add up in another order, and a deep network makes more of that than rounding.
    """
    backends = {spec.backend for _, spec in chain}
    if len(backends) > 1 or backends == {"onnxruntime"}:
        return run_whole(program.model, inputs, threads=1)
    return _run(uncut(program, directory, like=chain[0][1]).stages, inputs)


def _golden_inputs(stages: Sequence[tuple[Path, StageSpec]], program: ProgramEntry) -> dict[str, Value]:
    """The inputs of a graph as they were recorded in the stages' golden checks; None for what was left out."""
    found: dict[str, Value] = {tensor.name: None for tensor in program.inputs}
    names = {f"in.{name}": name for name in found}
    for directory, spec in stages:
        assert spec.golden is not None
        stored = read_npz(directory / spec.golden.file, names)
        found |= {names[key]: value for key, value in stored.items() if key in names}
    return found


def _tokens(chains: Sequence[Sequence[Stage]]) -> int:
    """Of the text, where nobody says: only unlike back ends, and links that round, have nothing else to be equal to."""
    if not any(map(is_bounded, chains)):
        return 0
    largest = max(sum(spec.weight_bytes for _, spec in chain) for chain in chains)
    return FEWER_TOKENS if largest > LARGE_BYTES else TOKENS


def _equality(found: Sequence[Comparison]) -> dict[str, Any]:
    """The worst of the pipelines, each of them, and what is beyond the bounds; nothing where nothing was measured."""
    if not found:
        return {}
    return {
        "top1_agreement": min(each.found.top1 for each in found),
        "mean_kl": max(each.found.kl for each in found),
        "max_logit_diff": max(each.found.largest for each in found),
        "equality": [each.as_json() for each in found],
        "beyond": [text for each in found for text in each.beyond],
    }
