"""What a manifest speaks of: the program, its stages, the nodes, and who holds what."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ruvrun.manifest.tables import Key, Name, Natural, Positive, Table, Threads


class Tensor(Table, frozen=True):
    """A tensor that enters or leaves a stage or the program.

    ``shape`` holds sizes or symbolic names. For the cut tensors of a decoder the leading batch and sequence
    axes are one axis named ``tokens``: on the wire all tokens of a step are packed, without padding.
    ``wire`` is what it is rounded to on a link where that is another type than its own.
    """

    name: str
    dtype: str
    shape: list[int | str]
    wire: Literal["", "float16"] = ""


# What a stage's process takes where nobody measured it. Peak bytes of an ONNX Runtime session over the bytes of its
# weights, while they are packed; and the process with its back end imported and nothing loaded. And what serving adds
# to the latter, measured or not: links, checks, the buffers of calls. With SmolLM2 in one and two stages these come to
# within 2 % of the measured peaks, 272, 193 and 181 MiB without key/value space for 128, 72 and 58 MiB of weights.
PACKED = 1.4
RUNTIME_BYTES = 62 << 20
SERVING_BYTES = 22 << 20
_RESERVE_SHARE, _RESERVE_LEAST = 0.15, 1 << 30

SCALE_BYTES = 8
"""What keys or values of eight bits have with them: a scale and a zero for each token of each head."""


KvType = Literal["float32", "float16", "uint8"]


def reserve(installed: int) -> int:
    """Of so many bytes of memory those that are left to the system, and to all else that runs there."""
    return max(_RESERVE_LEAST, int(_RESERVE_SHARE * installed))


class KeyValue(Table, frozen=True):
    """The key/value space one stage needs per token: ``layers * 2 * heads * head_size`` values of ``dtype``."""

    layers: int
    heads: int
    head_size: int
    dtype: KvType

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence occupies on this stage."""
        width = {"float32": 4, "float16": 2, "uint8": 1}[self.dtype]
        head = self.head_size * width + (SCALE_BYTES if self.dtype == "uint8" else 0)
        return self.layers * 2 * self.heads * head


class Program(Table, frozen=True):
    """What is computed, as a whole.

    ``kind`` is ``decoder`` or ``graph``. ``source`` is the model file as it was named to the build; ``activations``
    says what products with quantised weights take, ``int8`` or ``float``, and ``precision`` what all else is computed
    with, ``f32`` or ``bf16`` (not told by older builds, which had the former). ``files`` maps what the head needs
    (tokenizer, chat template) to its SHA-256. ``loss`` is the measured distance from the source; ``samples`` names the
    inputs a graph was measured and checked with.
    """

    name: str
    kind: Literal["decoder", "graph"]
    source: str
    source_sha256: str
    architecture: str = ""
    quant: str = "none"
    activations: str = "int8"
    precision: str = ""
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    vocab: int = 0
    context: int = 0
    eos: list[int] = []
    files: dict[str, str] = {}
    loss: dict[str, float] = {}
    samples: list[str] = []


class Stage(Table, frozen=True):
    """One piece of the program. ``sha256`` is that of its ``bundle.toml``, which hashes all its files.

    ``inputs`` and ``outputs`` are the stage graph's own; ``forward`` names the tensors that leave for the
    next stage (or, on the last stage of a graph, the program's outputs), relayed ones included.
    """

    index: int
    sha256: str
    backend: str
    target: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    forward: list[str]
    weight_bytes: int
    graph_nodes: int
    kv: KeyValue | None = None


class Node(Table, frozen=True):
    """A machine of the fleet. ``public_key`` is its CURVE key (Z85, 40 characters)."""

    name: Name
    public_key: Key
    target: str
    cpus: list[Natural] = []
    threads: Threads = 0


class Placed(Table, frozen=True):
    """A stage on a node, within a pipeline."""

    stage: int
    node: str
    standby: list[str] = []


class Pipeline(Table, frozen=True):
    """Stages in order, each on a node."""

    stages: Annotated[list[Placed], msgspec.Meta(min_length=1)]


class Equality(Table, frozen=True):
    """How far ``ruvcompile verify`` found a pipeline to be from the uncut model in float64; no part of the id.

    Attributes:
        pipeline: which; those that hold the same stages are the same.
        backends: of its stages, in order.
        floats: whether activations, keys and values are floats of 32 bits throughout.
        tokens: positions of a real text.
        top1_agreement: at what share of them both put the same token first.
        mean_kl: Kullback-Leibler divergence (nats) of the next-token distribution.
        max_logit_diff: the largest difference of two logits.
    """

    pipeline: Natural
    backends: list[str]
    floats: bool
    tokens: Positive
    top1_agreement: float
    mean_kl: float
    max_logit_diff: float


class Head(Table, frozen=True):
    """The node whose head process answers HTTP and runs the engine."""

    node: str


class Space(Table, frozen=True):
    """Key/value space of each pipeline: positions per sequence, and sequences at a time; no part of the id."""

    context: Positive
    streams: Positive
