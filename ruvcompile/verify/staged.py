"""Does a pipeline of a decoder give the tokens that it must?

Stages of one back end together are the uncut model, which is the same program and weights in one stage on it: greedy
answers to several prompts must be equal, alone there and in company here. Stages of unlike back ends have no such
model (how far they are from the weights is for ``equality``), nor have stages whose activations are rounded on the
links; they must give the same alone and in company.

A decoder of more than ``LARGE_BYTES`` is not loaded: one stage after the other, and the uncut model part by part, are
run on one prompt, whose logits must be equal bit by bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ruvcompile.parts import Parts, Stage, run_parts
from ruvcompile.program import Program
from ruvcompile.verify.forced import Reading, forced_logits
from ruvcompile.verify.loss import sample_tokens
from ruvcompile.verify.uncut import uncut
from ruvrun.executors.openvino.forms import all_on_cpu
from ruvrun.pipeline import Request, Sampling, join_local

# Start and length in the sample text; one of a single token, which is computed in its own mode.
PROMPTS = ((0, 24), (24, 7), (40, 1), (60, 33))
ANSWER = 64
LARGE_BYTES = 2 << 30


class Sameness(NamedTuple):
    """Whether all was equal, of how many tokens, in how many cases."""

    same: bool
    tokens: int
    cases: int


def is_mixed(stages: Sequence[Stage]) -> bool:
    """Whether a pipeline is of several back ends."""
    return len({spec.backend for _, spec in stages}) > 1


def is_rounded(stages: Sequence[Stage]) -> bool:
    """Whether what crosses the links of a pipeline is rounded there."""
    return any(tensor.wire for _, spec in stages for tensor in spec.inputs)


def is_bounded(stages: Sequence[Stage]) -> bool:
    """Whether a pipeline has no uncut model whose tokens it must give, only a bound."""
    return is_mixed(stages) or is_rounded(stages)


def same_chains(program: Program, chains: Sequence[Sequence[Stage]], scratch: Path, threads: int) -> Sameness:
    """Whether every pipeline is what it must be.

    Args:
        program: quantised.
        chains: the stages of each pipeline.
        scratch: where the uncut model is written.
        threads: for large ones; others are run as they were built to be.
    """
    alone: dict[str, Parts] = {}
    every = []
    for chain in chains:
        large = sum(spec.weight_bytes for _, spec in chain) > LARGE_BYTES
        (_, spec), *_ = chain
        if is_bounded(chain):
            every.append(same_chunks(program, chain, threads) if large else same_tokens(program, chain, chain))
            continue
        if spec.backend not in alone:
            alone[spec.backend] = uncut(program, scratch, like=spec)
        whole = alone[spec.backend]
        every.append(same_logits(chain, whole, threads) if large else same_tokens(program, chain, whole.stages))
    return Sameness(
        all(each.same for each in every), sum(each.tokens for each in every), sum(each.cases for each in every)
    )


def same_logits(stages: Sequence[Stage], whole: Parts, threads: int) -> Sameness:
    """The logits of one prompt, of the stages one after the other and of the uncut model."""
    ids, length = _prompt(whole.program), PROMPTS[0][1]
    wanted = run_parts(whole.all(), {"input_ids": ids}, rows=length, threads=threads)["logits"]
    found = run_parts(stages, {"input_ids": ids}, rows=length, threads=threads)["logits"]
    return Sameness(np.array_equal(found, wanted), length, 1)


def same_chunks(program: Program, stages: Sequence[Stage], threads: int) -> Sameness:
    """The logits of one prompt, of the stages one after the other, in one chunk and in two."""
    ids, half = _prompt(program), PROMPTS[0][1] // 2
    whole, parts = [Reading(0, 0, 2 * half)], [Reading(0, 0, half), Reading(half, half, half)]
    wanted, found = (
        np.concatenate([rows.copy() for rows in forced_logits(stages, ids, calls, threads)]) for calls in (whole, parts)
    )
    return Sameness(np.array_equal(found, wanted), len(ids), 1)


def same_tokens(program: Program, stages: Sequence[Stage], whole: Sequence[Stage]) -> Sameness:
    """Greedy answers to a few prompts: alone on ``whole``, in company on ``stages``."""
    assert program.decoder is not None
    text = np.resize(sample_tokens(program), max(at + length for at, length in PROMPTS))
    context = min(program.decoder.context, max(length for _, length in PROMPTS) + ANSWER)
    greedy = Sampling(temperature=0.0, top_p=1.0, seed=0)
    requests = [
        Request(number, tuple(int(token) for token in text[at : at + length]), ANSWER, greedy, frozenset())
        for number, (at, length) in enumerate(PROMPTS)
    ]
    alone = join_local(all_on_cpu(whole), context=context, streams=1)
    wanted = {request.id: alone.generate([request])[request.id] for request in requests}
    found = join_local(all_on_cpu(stages), context=context, streams=len(requests)).generate(requests)
    return Sameness(found == wanted, sum(map(len, wanted.values())), len(requests))


def _prompt(program: Program) -> np.ndarray:
    at, length = PROMPTS[0]
    return np.resize(sample_tokens(program), at + length)[at:]
