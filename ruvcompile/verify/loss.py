"""How far the quantised program is from the file it came from.

The float weights of the file are run layer by layer, so that they are never all in memory, and the quantised stages
one after the other, on the same text: the mean Kullback-Leibler divergence of the next-token distribution, and how
often both put the same token first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ruvcompile.passes.extract import extract
from ruvcompile.passes.pieces import program_units, unit_of
from ruvcompile.passes.units import Unit
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.whole import open_session
from ruvrun.bundle import StageSpec
from ruvrun.executors import Array, Span, load_decoder

LOSS_TOKENS = 256
ROWS_AT_ONCE = 64


def source_loss(
    source: Program, stages: Sequence[tuple[Path, StageSpec]], threads: int, progress: Progress
) -> dict[str, float]:
    """How far the quantised stages are from the float program: ``kl``, ``top1`` and ``tokens``.

    Args:
        source: the program before it was quantised.
        stages: directory and spec of the quantised stages, in order.
    """
    assert source.decoder is not None
    ids = sample_tokens(source)[: min(LOSS_TOKENS, source.decoder.context)]
    layers = list(_layers(program_units(source)))
    with progress.step("loss", total=len(layers) + len(stages)) as bar:
        quantised = {"input_ids": ids}
        for directory, spec in stages:
            quantised = _run_stage(directory, spec, quantised, threads)
            bar.advance()
        exact: dict[str, Array] = {"input_ids": ids[None], "position_ids": np.arange(len(ids))[None]}
        for nodes in layers:
            exact |= _run_float(source, nodes, exact, threads)
            bar.advance()
    kl, same = _compare(exact["logits"][0], quantised["logits"])
    return {"kl": round(kl, 6), "top1": round(same, 6), "tokens": float(len(ids))}


def sample_tokens(program: Program) -> Array:
    """The tokens of a text of prose and code that comes with the compiler, for any decoder's own tokenizer."""
    text = resources.files("ruvcompile").joinpath("sample.txt").read_text("utf-8")
    tokenizer = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
    ids: Array = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    return ids


def _layers(units: Sequence[Unit]) -> Iterator[tuple[str, ...]]:
    """Node names layer by layer: attention and MLP of one layer together."""
    nodes: dict[str, list[str]] = {}
    for unit in units:
        name = unit_of(unit.nodes[0])
        nodes.setdefault(name.rsplit(".", 1)[0] if name.startswith("layers.") else name, []).extend(unit.nodes)
    yield from (tuple(names) for names in nodes.values())


def _run_stage(directory: Path, spec: StageSpec, tensors: Mapping[str, Array], threads: int) -> dict[str, Array]:
    """One quantised stage on all tokens at once; it is loaded for this and freed again."""
    count = len(next(iter(tensors.values())))
    executor = load_decoder(directory, spec, context=count, slots=1, threads=threads)
    outputs = executor.step([Span(0, 0, count, count)], {tensor.name: tensors[tensor.name] for tensor in spec.inputs})
    return {name: array.copy() for name, array in outputs.items()}


def _run_float(source: Program, nodes: Sequence[str], known: Mapping[str, Array], threads: int) -> dict[str, Array]:
    """Run some nodes of the float program on what is known: all positions at once, nothing past."""
    assert source.decoder is not None
    wanted = set(nodes)
    inside = [node for node in source.model.graph if node.name in wanted]
    made = {value.name for node in inside for value in node.outputs}
    entering = {
        str(value.name): value
        for node in inside
        for value in node.inputs
        if value is not None and value.name not in made and not value.is_initializer()
    }
    leaving = [
        str(value.name)
        for node in inside
        for value in node.outputs
        if value.name == "logits" or any(use.node.name not in wanted for use in value.uses())
    ]
    past = np.zeros((1, source.decoder.kv_heads, 0, source.decoder.head_size), np.float32)
    arrays = {name: known.get(name, past) for name in entering}
    piece = extract(source.model, nodes, inputs=list(entering), outputs=leaving, name="piece")
    session = open_session(piece, threads=threads)
    return dict(zip(leaving, session.run(leaving, arrays), strict=True))


def _compare(exact: Array, quantised: Array) -> tuple[float, float]:
    """Mean KL (nats) of the exact from the quantised distribution, and the share of equal first choices."""
    divergences = []
    for start in range(0, len(exact), ROWS_AT_ONCE):
        p = _log_softmax(exact[start : start + ROWS_AT_ONCE])
        q = _log_softmax(quantised[start : start + ROWS_AT_ONCE])
        divergences.append((np.exp(p) * (p - q)).sum(-1))
    same = float((exact.argmax(-1) == quantised.argmax(-1)).mean())
    return float(np.concatenate(divergences).mean()), same


def _log_softmax(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(-1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return result
