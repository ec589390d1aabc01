"""``manifest.toml`` and ``nodes.toml``: the contract between the nodes, and where they are.

The manifest says *what* is computed and by whom: the program, the stages, the nodes' public keys, the
pipelines, and the plan's predictions. Every node holds the same manifest and refuses a peer that holds
another one. Where the nodes are is not in it: addresses and ports stand in ``nodes.toml`` beside it, which
a person edits at will (or in ``node/nodes.toml`` of a bundle that was copied).

``id`` is a hash of what is computed: protocol, program, stages, pipelines. It does not cover addresses,
ports, keys, predictions, context or streams, so that those can change without a new build.

The compiler writes both files through ``dump_manifest`` and ``dump_nodes``; the reader owns the format.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from ruvrun.errors import InputError
from ruvrun.toml import FORMAT as FORMAT
from ruvrun.toml import dump_toml as dump_toml
from ruvrun.toml import read_table as read_table
from ruvrun.toml import read_toml as read_toml

PROTOCOL = 1
MANIFEST = "manifest.toml"
NODES = "nodes.toml"
LOCAL = "local"

_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z")]  # also the name of a folder
_Key = Annotated[str, msgspec.Meta(pattern=r"^[0-9A-Za-z.:+=^!/*?&<>()\[\]{}@%$#-]{40}\Z")]  # Z85
_Port = Annotated[int, msgspec.Meta(ge=1, le=65535)]
_Positive = Annotated[int, msgspec.Meta(ge=1)]
_Natural = Annotated[int, msgspec.Meta(ge=0)]


class _Struct(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What every table of the file is: immutable, and strict about keys."""


class Tensor(_Struct, frozen=True):
    """A tensor that enters or leaves a stage or the program.

    ``shape`` holds sizes or symbolic names. For the cut tensors of a decoder the leading batch and sequence
    axes are one axis named ``tokens``: on the wire all tokens of a step are packed, without padding.
    """

    name: str
    dtype: str
    shape: list[int | str]


# What a stage's process takes where nobody measured it. Peak bytes of an ONNX Runtime session over the bytes of its
# weights, while they are packed; and the process with its back end imported and nothing loaded. Measured with SmolLM2
# in one and two stages: peaks of 272, 193 and 181 MiB without key/value space, for 128, 72 and 58 MiB of weights.
PACKED = 1.4
RUNTIME_BYTES = 84 << 20


class KeyValue(_Struct, frozen=True):
    """The key/value space one stage needs per token: ``layers * 2 * heads * head_size`` values of ``dtype``."""

    layers: int
    heads: int
    head_size: int
    dtype: Literal["float32", "float16", "uint8"]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token of one sequence occupies on this stage."""
        width = {"float32": 4, "float16": 2, "uint8": 1}[self.dtype]
        return self.layers * 2 * self.heads * self.head_size * width


class Program(_Struct, frozen=True):
    """What is computed, as a whole.

    ``kind`` is ``decoder`` or ``graph``. ``source`` is the model file as it was named to the build;
    ``files`` maps what the head needs (tokenizer, chat template) to its SHA-256. ``loss`` is the measured distance
    from the source; ``samples`` names the inputs a graph was measured and checked with.
    """

    name: str
    kind: Literal["decoder", "graph"]
    source: str
    source_sha256: str
    architecture: str = ""
    quant: str = "none"
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    vocab: int = 0
    context: int = 0
    eos: list[int] = []
    files: dict[str, str] = {}
    loss: dict[str, float] = {}
    samples: list[str] = []


class Stage(_Struct, frozen=True):
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


class Node(_Struct, frozen=True):
    """A machine of the fleet. ``public_key`` is its CURVE key (Z85, 40 characters)."""

    name: _Name
    public_key: _Key
    target: str
    cpus: list[_Natural] = []
    threads: _Natural = 0


class Placed(_Struct, frozen=True):
    """A stage on a node, within a pipeline."""

    stage: int
    node: str
    standby: list[str] = []


class Pipeline(_Struct, frozen=True):
    """Stages in order, each on a node."""

    stages: Annotated[list[Placed], msgspec.Meta(min_length=1)]


class Head(_Struct, frozen=True):
    """The node whose head process answers HTTP and runs the engine."""

    node: str


class Space(_Struct, frozen=True):
    """Key/value space of each pipeline: positions per sequence, and sequences at a time; no part of the id."""

    context: _Positive
    streams: _Positive


class Expected(_Struct, frozen=True):
    """What a plan expects of the stage on a node: times of its steps, and what its process takes of memory.

    Attributes:
        node: which.
        rows, ms: a step of ``rows[i]`` rows takes ``ms[i]``.
        weight_bytes: its weights in memory, once the back end has packed them.
        working_bytes: what the largest step needs, activations and logits.
        runtime_bytes: the process with its back end and nothing loaded. Key/value space comes on top of these.
    """

    node: str
    rows: list[int] = []
    ms: list[float] = []
    weight_bytes: int = 0
    working_bytes: int = 0
    runtime_bytes: int = 0

    @property
    def bytes(self) -> int:
        """All but key/value space."""
        return self.weight_bytes + self.working_bytes + self.runtime_bytes

    def step_ms(self, rows: int) -> float | None:
        """A step of so many rows: straight between what is known, and on as it ends; None where nothing is."""
        if not self.rows:
            return None
        place = min(max(1, bisect_left(self.rows, rows)), len(self.rows) - 1)
        if place == 0:
            return self.ms[0]
        (x0, x1), (y0, y1) = self.rows[place - 1 : place + 1], self.ms[place - 1 : place + 1]
        return max(0.0, y0 + (y1 - y0) * (rows - x0) / (x1 - x0))


class Plan(_Struct, frozen=True):
    """What the build predicted, and on what; not part of the id. Times in ms; ``stage_ms`` of steps of ``rows`` rows.

    ``expected`` tells every stage of every pipeline; ``per_s[i]`` is tokens (or items) per second of all pipelines with
    ``streams[i]`` in flight. Builds of old versions have neither.
    """

    cost_source: str = ""
    bottleneck_ms: float = 0.0
    lower_bound_ms: float = 0.0
    gap: float = 0.0
    stage_ms: list[float] = []
    rows: int = 1
    tokens_per_s: float = 0.0
    verdict: str = ""
    expected: list[Expected] = []
    streams: list[int] = []
    per_s: list[float] = []

    def rate(self, streams: int) -> float | None:
        """Tokens (or items) per second with so many in flight; None where the plan does not say."""
        return dict(zip(self.streams, self.per_s, strict=False)).get(streams)

    def of(self, node: str) -> Expected | None:
        """What is expected of the stage on a node; None where the plan does not say."""
        return next((entry for entry in self.expected if entry.node == node), None)


class Manifest(_Struct, frozen=True):
    """All of ``manifest.toml``."""

    id: str
    program: Program
    stage: list[Stage]
    node: list[Node]
    pipeline: Annotated[list[Pipeline], msgspec.Meta(min_length=1)]
    head: Head
    space: Space | None = None
    plan: Plan = Plan()
    format: int = FORMAT
    protocol: int = PROTOCOL

    def node_named(self, name: str) -> Node:
        """The node called ``name``; it must be there, as every node is that ``load_manifest`` found placed."""
        return next(node for node in self.node if node.name == name)

    def place_of(self, name: str) -> tuple[int, Placed] | None:
        """Pipeline number and stage of a node, or None for a node that holds no stage."""
        for number, pipeline in enumerate(self.pipeline):
            for placed in pipeline.stages:
                if placed.node == name:
                    return number, placed
        return None


class Address(_Struct, frozen=True, omit_defaults=False):
    """Where a node listens. ``local`` is a process on this machine (127.0.0.1)."""

    name: str
    address: str = LOCAL
    port: _Port = 7070
    ssh: str = ""


class HeadAddress(_Struct, frozen=True, omit_defaults=False):
    """The head's own link port on its node, where the last stage reports. Its host is the head node's."""

    port: _Port = 7069


class Nodes(_Struct, frozen=True, omit_defaults=False):
    """All of ``nodes.toml``, which a person edits: every key stands there, also where it is the default."""

    node: list[Address]
    head: HeadAddress = HeadAddress()
    format: int = FORMAT

    def address_of(self, name: str) -> Address:
        """The entry of ``name``, or an error that lists what is there."""
        for entry in self.node:
            if entry.name == name:
                return entry
        raise InputError(
            "node-without-address",
            f"nodes.toml has no entry for node {name!r}",
            context=[f"it has: {', '.join(entry.name for entry in self.node)}"],
            hint=f'add a [[node]] table with name = "{name}" and its address',
        )


def identify(program: Program, stages: list[Stage], pipelines: list[Pipeline]) -> str:
    """The manifest's ``id``: SHA-256 (hex) over protocol, program, stages and pipelines.

    The program's file name, its display name, its measured loss and the samples are not part of what is computed.
    """
    what = msgspec.to_builtins(program)
    for key in ("name", "source", "loss", "samples"):
        what.pop(key, None)
    body = [PROTOCOL, what, msgspec.to_builtins(stages), msgspec.to_builtins(pipelines)]
    return hashlib.sha256(msgspec.json.encode(body, order="sorted")).hexdigest()


def load_manifest(path: Path) -> Manifest:
    """Read and check ``manifest.toml``: form, format and protocol number, its own ``id``, its nodes and stages."""
    manifest = read_toml(path, Manifest, "manifest")
    if manifest.protocol != PROTOCOL:
        raise InputError(
            "protocol-unknown",
            f"{path} speaks protocol {manifest.protocol}, this version {PROTOCOL}",
            hint="use the version of ruvrun that belongs to the one that built it",
        )
    wanted = identify(manifest.program, manifest.stage, manifest.pipeline)
    if manifest.id != wanted:
        raise InputError(
            "manifest-id-wrong",
            f"{path} does not match its own id",
            context=[f"it says {manifest.id[:12]}, its content is {wanted[:12]}"],
            hint="it was edited by hand; build again, and put addresses into nodes.toml",
        )
    named = [node.name for node in manifest.node]
    placed = [entry.node for pipeline in manifest.pipeline for entry in pipeline.stages]
    if unknown := sorted({manifest.head.node, *placed} - set(named)):
        # The nodes' tables hold keys, which the id does not cover.
        raise InputError(
            "manifest-node-missing",
            f"{path} has no [[node]] for {unknown[0]}",
            context=[f"it has: {', '.join(named)}"],
            hint="it was edited by hand; copy it from the build again",
        )
    if twice := sorted({node for node in placed if placed.count(node) > 1}):
        # Who sent a result is known by its node.
        raise InputError(
            "manifest-node-twice",
            f"{path} places two stages on {twice[0]}",
            hint="a node holds one stage of one pipeline: build again",
        )
    held = {stage.index for stage in manifest.stage}
    if absent := sorted({entry.stage for pipeline in manifest.pipeline for entry in pipeline.stages} - held):
        raise InputError(
            "manifest-stage-missing",
            f"{path} places stage {absent[0]}, and has no such [[stage]]",
            hint="build again, and copy the manifest whole",
        )
    return manifest


def dump_manifest(manifest: Manifest) -> bytes:
    """The bytes of ``manifest.toml``."""
    return dump_toml(manifest)


def load_nodes(path: Path) -> Nodes:
    """Read and check ``nodes.toml``."""
    return read_toml(path, Nodes, "nodes file")


def dump_nodes(nodes: Nodes) -> bytes:
    """The bytes of ``nodes.toml``."""
    return dump_toml(nodes)
