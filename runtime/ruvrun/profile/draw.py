"""A probe: one piece of a model of each distinct shape, small to copy, because its weights are not in it.

How long a kernel runs does not depend on what its weights hold, so those of large products are drawn on the machine
that is measured, from a seed. ``probe.toml`` beside the stage says what belongs where::

    probe.toml            seed, and for every weight file what is drawn and what is kept
    bundle.toml           the stage as in any bundle; hashes are of the whole files, as they will be drawn
    stage.onnx  units.toml  golden.npz
    weights/<sha>.kept    of a file of which parts are drawn: the rest, one after the other
    weights/<sha>.bin     files that are kept whole

Semantics hang on small tensors, shapes and indices, so they are kept as they are. What is drawn are bytes of quantised
weights, and floats of a few levels around zero, that every float type can hold exactly. The numbers are those of the
bit generator itself (PCG64), which are the same in every version of numpy and on every machine; so the files that are
drawn have the hashes that ``bundle.toml`` says.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Literal

import msgspec
import numpy as np

from ruvrun.bundle import BUNDLE, File, load_spec
from ruvrun.elements import Array
from ruvrun.errors import InputError, IntegrityError
from ruvrun.manifest import FORMAT, read_toml
from ruvrun.scratch import scratch_folder

PROBE = "probe.toml"
KEPT = ".kept"
_PIECE = 1 << 20
"""Numbers that are drawn at a time, each of eight bytes."""

_SMALLEST = 1074
"""Powers of two below which a float is none."""

Kind = Literal["bytes", "float16", "bfloat16", "float32", "float64"]


class Drawn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A tensor within a file: where, of what, and for floats how small: multiples of 2 to the power of -``shift``.

    ``like`` is the salt and offset that it is drawn with, where it came from another file; empty: this one's own.
    """

    offset: int
    length: int
    kind: Kind
    shift: int = 0
    like: str = ""


class DrawnFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A weight file: ``path`` in the stage, its size, and what is drawn of it; the rest is in ``path`` + ``.kept``.

    ``salt`` tells it from other files of equal shape: a back end keeps equal tensors once.
    """

    path: str
    salt: str
    bytes: int
    tensor: list[Drawn]


class Probe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of ``probe.toml``.

    ``model``, ``quant`` and ``target`` are for people, ``threads`` are what the target's stages run with.
    """

    model: str
    quant: str
    target: str
    threads: int
    seed: int
    file: list[DrawnFile] = []
    format: int = FORMAT


def is_probe(directory: Path) -> bool:
    """Whether there is a probe in ``directory``."""
    return (directory / PROBE).is_file()


def load_probe(directory: Path) -> Probe:
    """Read ``probe.toml``; what no probe can say is refused: no threads, tensors that overlap or lie outside."""
    probe = read_toml(directory / PROBE, Probe, "probe")
    if probe.threads < 1:
        told = f"{directory / PROBE} is to be measured with {probe.threads} threads"
        raise InputError("probe-wrong", told, hint="make it again")
    for file in probe.file:
        end = 0
        for tensor in file.tensor:
            inside = end <= tensor.offset <= tensor.offset + tensor.length <= file.bytes
            if not inside or not 0 <= tensor.shift <= _SMALLEST:
                what = f"the tensors of {file.path} {'are no numbers' if inside else 'overlap'}"
                raise InputError("probe-wrong", f"{directory / PROBE}: {what}", hint="make it again")
            end = tensor.offset + tensor.length
    return probe


@contextmanager
def drawn(directory: Path, place: Path | None = None) -> Iterator[Path]:
    """The probe in ``directory`` as a bundle with all its weights, below ``place`` while the block lasts.

    Without one it is beside the probe, where that can be written: temporary files are in memory on some machines, and
    these are as large as some layers of the model.

    Raises:
        IntegrityError: a file is missing, or is not what ``bundle.toml`` says.
    """
    probe, spec = load_probe(directory), load_spec(directory)
    parts, sizes = {file.path: file for file in probe.file}, {file.path: file.bytes for file in spec.files}
    for name, part in parts.items():
        if sizes.get(name) != part.bytes:  # before the disk is filled with it
            told = f"{directory / PROBE} and {BUNDLE} beside it do not agree on {name}"
            raise IntegrityError("probe-altered", told, hint="copy the probe again, or make it again")
    beside = directory.resolve().parent
    with scratch_folder(".probe", place or (beside if os.access(beside, os.W_OK) else None)) as folder:
        for file in spec.files:
            target = folder / file.path
            if not target.resolve().is_relative_to(folder.resolve()):
                raise IntegrityError("probe-outside", f"{file.path!r} is outside {directory}", hint="make it again")
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as stream:
                if file.path in parts:
                    found = _draw(directory, parts[file.path], probe.seed, stream)
                else:
                    found = _copy(directory / file.path, stream)
            _check(directory, file, found)
        shutil.copyfile(directory / "bundle.toml", folder / "bundle.toml")
        yield folder


def numbers(seed: int, salt: str, tensor: Drawn) -> Iterator[bytes]:
    """The bytes of a tensor, piece by piece: the same wherever they are drawn.

    Args:
        seed: of the probe.
        salt: of the file.
        tensor: what is drawn; its offset tells it from others of the file.
    """
    entropy = hashlib.sha256(f"{seed} {tensor.like or origin(salt, tensor)}".encode()).digest()
    generator = np.random.PCG64(int.from_bytes(entropy[:16], "little"))
    width = {"bytes": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[tensor.kind]
    left = tensor.length // width
    while left > 0:
        count = min(left, 8 * _PIECE)
        raw: Array = generator.random_raw(-(-count // 8)).astype("<u8", copy=False).view(np.uint8)[:count]
        yield raw.tobytes() if tensor.kind == "bytes" else _floats(raw.view(np.int8), tensor)
        left -= count


def origin(salt: str, tensor: Drawn) -> str:
    """What tells a tensor of a file from all others."""
    return f"{salt} {tensor.offset}"


def _floats(levels: Array, tensor: Drawn) -> bytes:
    values = np.ldexp(levels.astype(np.float64), -tensor.shift)
    if tensor.kind == "bfloat16":  # the upper half of a float32
        return (values.astype("<f4").view("<u4") >> 16).astype("<u2").tobytes()
    return values.astype(np.dtype(tensor.kind).newbyteorder("<")).tobytes()


def _draw(directory: Path, file: DrawnFile, seed: int, stream: IO[bytes]) -> str:
    """Write a file of which parts are drawn; its SHA-256."""
    digest = hashlib.sha256()
    kept = directory / f"{file.path}{KEPT}"
    with kept.open("rb") if kept.is_file() else open(os.devnull, "rb") as rest:  # noqa: PTH123 - nothing is kept
        for piece in _pieces(file, seed, rest):
            stream.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def _pieces(file: DrawnFile, seed: int, rest: IO[bytes]) -> Iterator[bytes]:
    at = 0
    for tensor in file.tensor:
        yield rest.read(tensor.offset - at)
        yield from numbers(seed, file.salt, tensor)
        at = tensor.offset + tensor.length
    yield rest.read(file.bytes - at)


def _copy(path: Path, stream: IO[bytes]) -> str:
    digest = hashlib.sha256()
    if not path.is_file():
        return ""
    with path.open("rb") as source:
        while piece := source.read(8 * _PIECE):
            stream.write(piece)
            digest.update(piece)
    return digest.hexdigest()


def _check(directory: Path, file: File, found: str) -> None:
    if found != file.sha256:
        raise IntegrityError(
            "probe-altered" if found else "probe-incomplete",
            f"{directory / file.path} {'is not what the probe was made with' if found else 'is missing'}",
            hint="copy the probe again, or make it again with `ruvcompile probe`",
        )


def gaps(file: DrawnFile) -> Sequence[tuple[int, int]]:
    """The spans of a file that are kept, start and end."""
    found, at = [], 0
    for tensor in file.tensor:
        found.append((at, tensor.offset))
        at = tensor.offset + tensor.length
    return [span for span in [*found, (at, file.bytes)] if span[0] < span[1]]
