"""Is the staged model the uncut one?

The uncut model is the same program and weights in one stage on the same back end. Decoders must give the same
tokens, greedy, for several prompts, alone there and in company here; of a graph's outputs ``tensors`` has the rules.

A decoder of more than ``LARGE_BYTES`` is not loaded: one stage after the other, and the uncut model part by part, are
run on one prompt, whose logits must be equal bit by bit.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ruvcompile.errors import InputError
from ruvcompile.lower.draft import kv_type_of
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.parts import Parts, Stage, run_parts
from ruvcompile.passes.chance import left_to_chance
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.verify.loss import sample_tokens, source_loss
from ruvcompile.verify.tensors import tensors_agree
from ruvcompile.whole import run_whole
from ruvrun.bundle import StageSpec, find_bundles, verify_bundle
from ruvrun.elements import Value
from ruvrun.manifest import Program as ProgramEntry
from ruvrun.manifest import load_manifest
from ruvrun.npz import read_npz
from ruvrun.pipeline import Request, Sampling, join_local

# Start and length in the sample text; one of a single token, which is computed in its own mode.
PROMPTS = ((0, 24), (24, 7), (40, 1), (60, 33))
ANSWER = 64
LARGE_BYTES = 2 << 30


def compare(
    manifest_path: Path, model: Path | None, read: Callable[[str], Program], threads: int, progress: Progress
) -> dict[str, Any]:
    """Compare a build with the uncut model and with its source.

    Args:
        manifest_path: of a whole build.
        model: its source; None to look where the manifest names it.
        read: loads a file into canonical form.
        threads: for the float model.

    Returns:
        The JSON object of ``ruvcompile verify``.

    Raises:
        InputError: the source or a bundle is not here, or the source is another file.
    """
    manifest = load_manifest(manifest_path)
    bundles = find_bundles(manifest_path, manifest)
    placed = [entry for pipeline in manifest.pipeline for entry in pipeline.stages]
    if missing := [entry.node for entry in placed if entry.node not in bundles]:
        hint = "verify the manifest of the whole build"
        raise InputError("bundle-missing", f"the bundle of {missing[0]} is not beside {manifest_path}", hint=hint)
    # Replicas hold the same bytes, which is checked of every node; what is run is every different pipeline, once.
    checked = {entry.node: verify_bundle(bundles[entry.node], manifest, entry.stage) for entry in placed}
    different = {tuple(entry.stage for entry in pipeline.stages): pipeline for pipeline in manifest.pipeline}
    chains = [
        [(bundles[entry.node], checked[entry.node]) for entry in pipeline.stages] for pipeline in different.values()
    ]
    stages = chains[0]
    with progress.step("load"):
        source = read(str(model or _find_source(manifest.program.source, manifest_path)))
        if source.source.sha256 != manifest.program.source_sha256:
            raise InputError(
                "model-differs",
                f"{source.source.path} is not the file this was built from",
                context=[f"sha256 {source.source.sha256[:12]}, built from {manifest.program.source_sha256[:12]}"],
                hint="give the right file with --model",
            )
        program = quantise(source, manifest.program.quant)
    if program.decoder is None:
        with progress.step("compare"):
            inputs = _golden_inputs(stages, manifest.program)
            whole = run_whole(program.model, inputs, threads=1)
            types = {tensor.name: tensor.dtype for tensor in manifest.program.outputs}
            random = left_to_chance(program.model) & whole.keys()
            found = [
                tensors_agree(join_local(chain, context=0, streams=0).run(inputs), whole, types, random)
                for chain in chains
            ]
        same, largest = all(same for same, _ in found), max(largest for _, largest in found)
        result = {"identical": same, "max_abs_diff": largest, "tokens": 0, "cases": len(found), "vs_source": None}
        return result | ({"random": sorted(random)} if random else {})
    with tempfile.TemporaryDirectory(prefix="ruvcompile-") as directory, progress.step("compare"):
        alone = uncut(program, Path(directory), like=stages[0][1])
        large = alone.stages[0][1].weight_bytes > LARGE_BYTES
        every = [
            same_logits(chain, alone, threads) if large else same_tokens(program, chain, alone.stages[0])
            for chain in chains
        ]
    same, tokens, cases = all(one for one, _, _ in every), sum(n for _, n, _ in every), sum(n for _, _, n in every)
    loss = source_loss(source, stages, threads, progress) if program is not source else None
    return {"identical": same, "max_abs_diff": None, "tokens": tokens, "cases": cases, "vs_source": loss}


def uncut(program: Program, scratch: Path, *, like: StageSpec) -> Parts:
    """The program in one stage, written below ``scratch``, for the back end and target of another stage."""
    units = program_units(program)
    made = pieces(program, units, ())
    store = WeightStore(scratch / "store")
    directory = scratch / "uncut"
    spec = write_stage(
        program, made[0], directory, store, backend=like.backend, target=like.target, kv_type=kv_type_of(like)
    )
    return Parts(program, units, made, [(directory, spec)], store, scratch)


def same_logits(stages: Sequence[Stage], whole: Parts, threads: int) -> tuple[bool, int, int]:
    """The logits of one prompt, of the stages one after the other and of the uncut model; as ``same_tokens``."""
    at, length = PROMPTS[0]
    ids = {"input_ids": np.resize(sample_tokens(whole.program), at + length)[at:]}
    wanted = run_parts(whole.all(), ids, rows=length, threads=threads)["logits"]
    found = run_parts(stages, ids, rows=length, threads=threads)["logits"]
    return np.array_equal(found, wanted), length, 1


def same_tokens(program: Program, stages: Sequence[Stage], whole: Stage) -> tuple[bool, int, int]:
    """Greedy answers to a few prompts: alone on the uncut model, in company on the staged one.

    Returns:
        Whether all tokens are equal, how many there were, and how many prompts.
    """
    assert program.decoder is not None
    text = np.resize(sample_tokens(program), max(at + length for at, length in PROMPTS))
    context = min(program.decoder.context, max(length for _, length in PROMPTS) + ANSWER)
    greedy = Sampling(temperature=0.0, top_p=1.0, seed=0)
    requests = [
        Request(number, tuple(int(token) for token in text[at : at + length]), ANSWER, greedy, frozenset())
        for number, (at, length) in enumerate(PROMPTS)
    ]
    alone = join_local([whole], context=context, streams=1)
    wanted = {request.id: alone.generate([request])[request.id] for request in requests}
    found = join_local(stages, context=context, streams=len(requests)).generate(requests)
    return found == wanted, sum(map(len, wanted.values())), len(requests)


def _golden_inputs(stages: Sequence[tuple[Path, StageSpec]], program: ProgramEntry) -> dict[str, Value]:
    """The inputs of a graph as they were recorded in the stages' golden checks; None for what was left out."""
    found: dict[str, Value] = {tensor.name: None for tensor in program.inputs}
    names = {f"in.{name}": name for name in found}
    for directory, spec in stages:
        assert spec.golden is not None
        stored = read_npz(directory / spec.golden.file, names)
        found |= {names[key]: value for key, value in stored.items() if key in names}
    return found


def _find_source(named: str, manifest_path: Path) -> Path:
    """The model file as the build was told it: from here, else from beside the build."""
    for candidate in (Path(named), manifest_path.parent / named, manifest_path.parent.parent / named):
        if candidate.exists():
            return candidate
    raise InputError("file-missing", f"the model {named} is not here", hint="say where it is with --model")
