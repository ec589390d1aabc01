"""How far pipelines are from what their weights mean, whatever back ends they are of.

Kernels of unlike back ends add up in other orders, and each quantises activations in its own way. So a pipeline that
mixes them has no uncut model whose tokens it must give, and there is nothing for it to be equal to but the weights: the
uncut model with the same quantised weights in float64 (the executor ``reference``). A real text is put before both,
and at every position the distributions of the next token are compared.

What must hold depends on what was asked for. With activations and keys and values as they are, only rounding is left.
With activations in eight bits (faster, the default) or with keys and values in fewer bits more is lost, by each back
end of its own; then a pipeline that mixes two must not be much worse than the worse of them alone, nor one whose links
round activations than the uncut model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ruvcompile.lower.draft import kv_type_of
from ruvcompile.parts import Stage
from ruvcompile.program import Program
from ruvcompile.progress import Progress
from ruvcompile.verify.divergence import ROWS_AT_ONCE, Divergence
from ruvcompile.verify.forced import WINDOW, forced_logits, in_blocks, readings
from ruvcompile.verify.loss import sample_tokens
from ruvcompile.verify.staged import is_bounded, is_rounded
from ruvcompile.verify.uncut import uncut
from ruvrun.bundle import StageSpec

TOKENS = 2048

# Of pipelines that compute with floats, and of all others.
LEAST_AGREEMENT, MOST_KL_FLOAT, MOST_KL = 0.995, 1e-3, 0.01
MOST_BESIDE = 1.2
"""A pipeline of unlike back ends, or with links that round, may be so many times as far as the worse of them alone."""

_PRECISION = "INFERENCE_PRECISION_HINT"
_WIDE = 256
"""Tokens of a call of the reference, which unpacks its weights in each."""


@dataclass(frozen=True)
class Comparison:
    """What was found of one pipeline.

    Attributes:
        pipeline: its number.
        backends: of its stages, in order.
        exact: whether it computes with floats of 32 bits, and sends no others.
        found: its divergence from the reference.
        beside: that of the uncut model on each of its back ends, where it has several or its links round.
    """

    pipeline: int
    backends: tuple[str, ...]
    exact: bool
    found: Divergence
    beside: Mapping[str, Divergence] = field(default_factory=dict)

    @property
    def beyond(self) -> list[str]:
        """What of it is not within its bounds, as sentences."""
        found, name = self.found, " + ".join(self.backends)
        most = MOST_KL_FLOAT if self.exact else MOST_KL
        told = []
        if not found.kl <= most:
            told.append(f"{name}: mean KL {found.kl:.3g}, at most {most:g} is right")
        if self.exact and not found.top1 >= LEAST_AGREEMENT:
            told.append(
                f"{name}: same first choice {100 * found.top1:.2f} %, at least {100 * LEAST_AGREEMENT:g} is right"
            )
        worse = max((each.kl for each in self.beside.values()), default=found.kl)
        # Where even the narrow bound holds, what is left is chance.
        if found.kl > max(MOST_KL_FLOAT, MOST_BESIDE * worse):
            told.append(
                f"{name}: mean KL {found.kl:.3g}, more than {MOST_BESIDE:g} times {worse:.3g}, "
                "what the worse of its back ends has alone"
            )
        return told

    def as_json(self) -> dict[str, Any]:
        """The figures, with those of the back ends alone."""
        return {
            "pipeline": self.pipeline,
            "backends": list(self.backends),
            "floats": self.exact,
            **_figures(self.found),
            "alone": {backend: _figures(each) for backend, each in self.beside.items()},
        }


def measure(
    program: Program,
    chains: Mapping[int, Sequence[Stage]],
    tokens: int,
    scratch: Path,
    threads: int,
    progress: Progress,
) -> list[Comparison]:
    """Hold pipelines against the reference.

    Args:
        program: quantised.
        chains: the stages of each pipeline, by its number.
        tokens: how many of the sample text; it is repeated where it is shorter.
        scratch: where uncut models may be written.
        threads: of each stage.
    """
    assert program.decoder is not None
    ids = sample_tokens(program).take(range(tokens), mode="wrap")
    window = min(WINDOW, program.decoder.context)
    beside = {number: _alone(chain) for number, chain in chains.items()}
    runs: dict[str, Iterable[Stage]] = {f"{number}": chain for number, chain in chains.items()}
    for name, spec in {name: spec for alone in beside.values() for name, spec in alone.items()}.items():
        runs[name] = uncut(program, scratch, like=spec).all()
    (_, any_spec), *_ = next(iter(chains.values()))
    reference = uncut(program, scratch, like=msgspec.structs.replace(any_spec, backend="reference", kv=None))
    found = {name: Divergence() for name in runs}
    with progress.step("equality", total=tokens) as bar:
        exact = forced_logits(reference.all(), ids, readings(tokens, window, _WIDE, single=False), threads)
        others = [forced_logits(stages, ids, readings(tokens, window), threads) for stages in runs.values()]
        for wanted, *rest in zip(*(in_blocks(rows, ROWS_AT_ONCE) for rows in (exact, *others)), strict=True):
            for divergence, rows in zip(found.values(), rest, strict=True):
                divergence.add(wanted, rows)
            bar.advance(len(wanted))
    return [
        Comparison(
            number,
            tuple(spec.backend for _, spec in chain),
            _with_floats(program, chain),
            found[f"{number}"],
            {spec.backend: found[name] for name, spec in beside[number].items()},
        )
        for number, chain in chains.items()
    ]


def _alone(chain: Sequence[Stage]) -> dict[str, StageSpec]:
    """A stage of each back end of a pipeline that is no uncut model, by what decides on the uncut model there."""
    return {f"{spec.backend} {kv_type_of(spec)}": spec for _, spec in chain} if is_bounded(chain) else {}


def _figures(found: Divergence) -> dict[str, float]:
    return {
        "tokens": found.tokens,
        "top1_agreement": found.top1,
        "mean_kl": found.kl,
        "max_logit_diff": found.largest,
    }


def _with_floats(program: Program, chain: Sequence[Stage]) -> bool:
    """Whether activations are never quantised, nor keys and values, and all is computed and sent in float32."""
    levels = (node.attributes.get("accuracy_level") for node in program.model.graph if node.op_type == "MatMulNBits")
    eight = any(level is not None and level.as_int() == 4 for level in levels)
    return not (eight or is_rounded(chain)) and all(
        (spec.kv is None or spec.kv.dtype == "float32") and spec.options.get(_PRECISION, "f32") == "f32"
        for _, spec in chain
    )
