"""How far the quantised program is from the file it came from.

The float weights of the file are walked over once (``floats``), and the quantised stages are run one after the other,
or part by part where they are large, on the same text: the mean Kullback-Leibler divergence of the next-token
distribution, and how often both put the same token first. Neither program is ever whole in memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources

import numpy as np
from tokenizers import Tokenizer

from ruvcompile.parts import Stage, run_parts
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.verify.floats import float_groups, run_floats
from ruvrun.executors import Array

LOSS_TOKENS = 256
ROWS_AT_ONCE = 64


def source_loss(source: Program, stages: Iterable[Stage], threads: int, progress: Progress) -> dict[str, float]:
    """How far the quantised stages are from the float program: ``kl``, ``top1`` and ``tokens``.

    Args:
        source: the program before it was quantised.
        stages: directory and spec of the quantised stages or of their parts (``parts.Parts``), in order.
        threads: for both.
    """
    assert source.decoder is not None
    ids = sample_tokens(source)[: min(LOSS_TOKENS, source.decoder.context)]
    groups = float_groups(source)
    with progress.step("loss", total=len(groups)) as bar:
        quantised = run_parts(stages, {"input_ids": ids}, rows=len(ids), threads=threads)["logits"]
        exact = run_floats(source, groups, ids, threads, bar.advance)
    kl, same = _compare(exact, quantised)
    return {"kl": round(kl, 6), "top1": round(same, 6), "tokens": float(len(ids))}


def sample_tokens(program: Program) -> Array:
    """The tokens of a text of prose and code that comes with the compiler, for any decoder's own tokenizer."""
    text = resources.files("ruvcompile").joinpath("sample.txt").read_text("utf-8")
    tokenizer = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
    ids: Array = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    return ids


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
