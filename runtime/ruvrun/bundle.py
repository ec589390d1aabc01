"""A bundle: one directory that is all one node needs.

::

    bundle.toml             what this stage is, and the SHA-256 of every file it consists of
    manifest.toml           the contract, the same on every node
    stage.onnx              the stage's graph
    weights/<sha256>.bin    its weights, one file per layer
    golden.npz              inputs and outputs of a short run, with a bound
    node/                   this node's alone, unhashed: name, secret key, addresses, service files;
                            on the head's node also head/ (tokenizer, chat template; hashed in the manifest)

``bundle.toml`` depends on nothing but the stage, so equal stages are equal bytes wherever they run.
Nothing is loaded before every byte of it is checked, and nothing that its list of files does not name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from ruvrun.errors import InputError, IntegrityError, RuvError
from ruvrun.manifest import FORMAT, MANIFEST, KeyValue, Manifest, Program, Stage, Tensor, read_toml

BUNDLE = "bundle.toml"
NODE = "node"
HEAD = "node/head"
BUNDLES = "bundles"
SECRET_KEY = "node/link.key"
NODE_NAME = "node/name"
COMPILED = "node/compiled"
"""Graphs that a node has compiled for itself, and what of (see ``executors/openvino/compiled.py``)."""


class File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One hashed file: path inside the bundle, SHA-256 (hex), size in bytes."""

    path: str
    sha256: str
    bytes: int


class Golden(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The self-check: ``file`` holds inputs and outputs; outputs must agree within ``bound``.

    It is absolute, and of the largest value; tokens with smaller ones have smaller bounds (``pipeline.selfcheck``).
    """

    file: str
    bound: float


class State(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Part of the state of a decoder stage that keeps it in plain tensors ``[1, heads, positions, head_size]``.

    ``past`` is the input that takes what the last call gave as the output ``present``.
    """

    past: str
    present: str
    heads: int
    head_size: int
    dtype: str


class StageSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """All of ``bundle.toml``: what the stage is and what it consists of.

    ``kind`` is ``decoder`` or ``graph``; ``first`` and ``last`` tell the ends of the pipeline apart.
    ``options`` are the back end's own settings, explicit, never a machine's default. ``exported`` is a stage of a
    decoder that is run as it was exported (see ``executors/stateful.py``), with the part of its ``state`` that is here;
    others keep theirs in the back end's own buffers.
    """

    kind: str
    backend: str
    target: str
    model: str
    first: bool
    last: bool
    inputs: list[Tensor]
    outputs: list[Tensor]
    forward: list[str]
    files: list[File]
    requires: dict[str, str] = {}
    options: dict[str, str] = {}
    kv: KeyValue | None = None
    vocab: int = 0
    exported: bool = False
    state: list[State] = []
    golden: Golden | None = None
    format: int = FORMAT

    @property
    def weight_bytes(self) -> int:
        """Bytes of the files under ``weights/``."""
        return sum(file.bytes for file in self.files if file.path.startswith("weights/"))


def load_spec(directory: Path) -> StageSpec:
    """Read ``bundle.toml``."""
    return read_toml(directory / BUNDLE, StageSpec, "bundle")


def requires(directory: Path) -> Mapping[str, str]:
    """The least versions of what a bundle's peers run; what may be wrong with it is told when it is loaded."""
    try:
        return load_spec(directory).requires
    except RuvError:
        return {}


def stage_of(directory: Path, spec: StageSpec, *, number: int, graph_nodes: int) -> Stage:
    """What a manifest says of the bundle in ``directory``, as its stage of a ``number``."""
    return Stage(
        index=number,
        sha256=file_sha256(directory / BUNDLE),
        backend=spec.backend,
        target=spec.target,
        inputs=spec.inputs,
        outputs=spec.outputs,
        forward=spec.forward,
        weight_bytes=spec.weight_bytes,
        graph_nodes=graph_nodes,
        kv=spec.kv,
    )


def verify_bundle(directory: Path, manifest: Manifest, stage: int) -> StageSpec:
    """Check every byte of the bundle in ``directory`` against the manifest's stage, then return its spec.

    Raises:
        IntegrityError: a file is missing or altered, lies elsewhere, or is to be loaded without being listed;
            nothing was loaded.
        InputError: there is no bundle, or it cannot be read.

    Files that ``bundle.toml`` does not name are not looked at: nothing reads them.
    """
    if not (directory / BUNDLE).is_file():
        raise InputError(
            "bundle-missing",
            f"no bundle in {directory}",
            hint="copy the whole bundle directory, or give the manifest that lies inside it",
        )
    found = file_sha256(directory / BUNDLE)
    wanted = next(entry.sha256 for entry in manifest.stage if entry.index == stage)
    if found != wanted:
        raise IntegrityError(
            "bundle-altered",
            f"{directory / BUNDLE} is not the one of stage {stage} of this manifest",
            context=[f"manifest says {wanted[:12]}, the file is {found[:12]}"],
            hint="copy the bundle and the manifest of one build",
        )
    spec = load_spec(directory)
    for file in spec.files:
        _check_file(directory, file.path, file.sha256, file.bytes)
    loaded = [spec.model, *([spec.golden.file] if spec.golden else [])]
    if unlisted := sorted(set(loaded) - {file.path for file in spec.files}):
        raise IntegrityError(
            "bundle-wrong", f"{directory / BUNDLE} does not list {unlisted[0]}, which it needs", hint="build it again"
        )
    return spec


def verify_head(directory: Path, program: Program) -> None:
    """Check the head's files (tokenizer, chat template) in the bundle of the head's node.

    Raises:
        IntegrityError: one is missing or is not the manifest's.
    """
    for name, sha256 in program.files.items():
        _check_file(directory / HEAD, name, sha256)


def _check_file(directory: Path, name: str, sha256: str, size: int | None = None) -> None:
    path, inside = directory / name, PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts:
        raise IntegrityError("bundle-wrong", f"{name!r} is outside {directory}", hint="build it again")
    if not path.is_file():
        raise IntegrityError("bundle-incomplete", f"{path} is missing", hint="copy the bundle again")
    found = path.stat().st_size
    if size not in (None, found) or file_sha256(path) != sha256:
        raise IntegrityError(
            "bundle-altered",
            f"{path} is not the file the bundle was built with",
            context=[f"expected sha256 {sha256[:12]}{'' if size is None else f', {size} bytes'}; found {found} bytes"],
            hint="copy the bundle again",
        )


def find_bundles(manifest_path: Path, manifest: Manifest) -> dict[str, Path]:
    """Which nodes' bundles lie beside a manifest: node name to bundle directory.

    A build's manifest has ``bundles/<node>/`` beside it; a bundle's own manifest lies in the bundle.
    """
    directory = manifest_path.parent
    if (directory / BUNDLE).is_file() or (directory / NODE_NAME).is_file():
        name = node_name(directory)
        return {name: directory} if name else {}
    found = {}
    for node in manifest.node:
        candidate = directory / BUNDLES / node.name
        if (candidate / MANIFEST).is_file():
            found[node.name] = candidate
    return found


def require_bundles(manifest_path: Path, manifest: Manifest, nodes: Iterable[str]) -> dict[str, Path]:
    """As ``find_bundles``, where those of ``nodes`` are needed here.

    Raises:
        InputError: one of them is not beside the manifest.
    """
    found = find_bundles(manifest_path, manifest)
    if missing := sorted(set(nodes) - found.keys()):
        raise InputError(
            "bundle-missing",
            f"no bundle of {', '.join(missing)} beside {manifest_path}",
            hint=f"give the manifest of the whole build, with {BUNDLES}/ beside it",
        )
    return found


def file_sha256(path: Path) -> str:
    """SHA-256 of a file, hex, read in pieces."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def node_name(directory: Path) -> str:
    """Whose bundle it is; empty where that is not said."""
    try:
        return (directory / NODE_NAME).read_text("utf-8").strip()
    except OSError:
        return ""
