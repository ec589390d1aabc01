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
from ruvcompile.verify.divergence import Divergence
from ruvcompile.verify.floats import float_groups, run_floats
from ruvrun.executors import Array

LOSS_TOKENS = 256


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
    found = Divergence()
    found.add(exact, quantised)
    return {"kl": round(found.kl, 6), "top1": round(found.top1, 6), "tokens": float(len(ids))}


def sample_tokens(program: Program) -> Array:
    """The tokens of a text of prose and code that comes with the compiler, for any decoder's own tokenizer."""
    text = resources.files("ruvcompile").joinpath("sample.txt").read_text("utf-8")
    tokenizer = Tokenizer.from_str(program.head_files["tokenizer.json"].decode())
    ids: Array = np.array(tokenizer.encode(text, add_special_tokens=False).ids, np.int64)
    return ids
