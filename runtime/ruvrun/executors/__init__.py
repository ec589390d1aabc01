"""Executors: one stage on one back end.

An executor holds the weights of exactly one stage and, for decoders, its key/value space. It knows nothing
of links, sequences' texts or sampling: the step plan tells it which slots, positions and tokens, and it
returns the tensors that leave the stage.

There are two kinds of stage and so two protocols: a ``DecoderExecutor`` takes packed tokens (one axis for
all sequences of the step) and keeps state by slot; a ``GraphExecutor`` maps named tensors to named tensors
and keeps nothing.

Back ends are imported on demand; which there are, and what holds of each, stands in ``ruvrun.backends``.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import msgspec

from ruvrun.backends import BACK_ENDS, package_of
from ruvrun.bundle import StageSpec
from ruvrun.elements import Value
from ruvrun.errors import InputError, did_you_mean
from ruvrun.frames import Array
from ruvrun.manifest.blocks import Pool


class Span(msgspec.Struct, frozen=True, gc=False):
    """The part of a step that belongs to one sequence: ``count`` tokens from ``position`` on, in ``slot``.

    ``rows`` is how many of the last positions the sampler wants logits for (0 or 1 today).
    """

    slot: int
    position: int
    count: int
    rows: int


class DecoderExecutor(Protocol):
    """A decoder stage with key/value space for ``slots`` sequences of ``context`` tokens."""

    slots: int
    context: int

    def step(self, spans: Sequence[Span], tensors: Mapping[str, Array]) -> dict[str, Array]:
        """Run one step.

        Args:
            spans: the sequences of this step; the packed axis of every tensor follows their order.
            tensors: ``input_ids`` ``[tokens]`` int64 on the first stage, else the cut tensors ``[tokens, ...]``.

        Returns:
            The stage's outputs: cut tensors ``[tokens, ...]``, or on the last stage ``logits`` ``[rows, vocab]``
            float32, one row for each row the spans ask for, in order. Arrays are the caller's until the next call.
        """


@runtime_checkable
class CopyingExecutor(DecoderExecutor, Protocol):
    """A decoder stage that can copy what it keeps, as those of the back ends in ``COPYING`` can."""

    def copy(self, source: int, target: int, count: int) -> None:
        """Let slot ``target`` have the first ``count`` positions of slot ``source``, which may be the same."""


class Shelf(Protocol):
    """What an executor has compiled, and may keep beside its bundle for the next start.

    Attributes:
        notes: sentences for whoever watches, about what was kept and could not be used.
        imported: whether any of it was used.
    """

    notes: list[str]
    imported: bool

    def keep(self) -> None:
        """Keep it; to be said once it was seen to compute what it should. Never fails."""

    def drop(self) -> None:
        """Let go of what was kept. Never fails."""


@runtime_checkable
class ShelvedExecutor(Protocol):
    """An executor of a stage that is compiled where it runs."""

    shelf: Shelf


@runtime_checkable
class PooledExecutor(DecoderExecutor, Protocol):
    """A decoder stage whose space is one pool of blocks, as those of the back ends in ``POOLED`` are.

    The first ``slots`` slots have blocks for a whole context each, until they are given others.
    """

    pool: Pool
    sequences: int

    def grant(self, slot: int, first: int, blocks: Sequence[int]) -> None:
        """Let the blocks of ``slot``, below ``sequences``, be these from its block number ``first`` on."""


class GraphExecutor(Protocol):
    """A stage of a graph that keeps no state of its own."""

    def run(self, tensors: Mapping[str, Value]) -> dict[str, Value]:
        """Run the stage once: named inputs to named outputs."""


def load_decoder(directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int) -> DecoderExecutor:
    """Load the decoder stage in ``directory`` (a bundle, already verified) on its back end."""
    executor: DecoderExecutor = _module(spec.backend).load_decoder(
        directory, spec, context=context, slots=slots, threads=threads
    )
    return executor


def load_graph(directory: Path, spec: StageSpec, *, threads: int) -> GraphExecutor:
    """Load the graph stage in ``directory`` (a bundle, already verified) on its back end."""
    executor: GraphExecutor = _module(spec.backend).load_graph(directory, spec, threads=threads)
    return executor


def load_executor(
    directory: Path, spec: StageSpec, *, context: int, slots: int, threads: int
) -> DecoderExecutor | GraphExecutor:
    """Load the stage in ``directory``, of whichever kind ``spec`` says; a graph has no ``context`` and ``slots``."""
    if spec.kind == "decoder":
        return load_decoder(directory, spec, context=context, slots=slots, threads=threads)
    return load_graph(directory, spec, threads=threads)


def back_end(spec: StageSpec) -> Any:
    """The module of a stage's back end, with all that it takes before any stage, which loading one does anyway.

    Raises:
        InputError: it is unknown, or not installed here.
    """
    module = _module(spec.backend)
    if start := getattr(module, "start", None):
        start(spec)
    return module


def _module(backend: str) -> Any:
    if backend not in BACK_ENDS:
        raise InputError(
            "bundle-backend-unknown", f"unknown back end {backend!r}", hint=did_you_mean(backend, BACK_ENDS)
        )
    try:
        return importlib.import_module(BACK_ENDS[backend].module)
    except ImportError as error:
        raise InputError(
            "backend-missing",
            f"this bundle runs on {backend}, which is not installed here",
            context=[str(error)],
            hint=f"pip install 'ruvrun[{package_of(backend)}]'",
        ) from None


__all__ = [
    "Array",
    "CopyingExecutor",
    "DecoderExecutor",
    "GraphExecutor",
    "PooledExecutor",
    "Shelf",
    "ShelvedExecutor",
    "Span",
    "back_end",
    "load_decoder",
    "load_executor",
    "load_graph",
]
