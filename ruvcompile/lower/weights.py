"""Weights on disk: one file per group (attention or MLP of a layer, embedding, head), named by its hash.

A decoder's group is the same bytes whatever the cut, so a moved cut copies only the groups that moved; a tied
head is the same file as the embedding. Each group is computed once per build, when it is first written, into
the store; stages link or copy it from there.

Groups are written side by side, but no more of them at once than fit into ``AT_ONCE``: the memory of a build is that
of a few groups, whatever the model's size and the number of cores.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ruvcompile.errors import InputError
from ruvrun.bundle import File

ALIGNMENT = 64
# Smaller tensors stay inside the graph file: shapes and sizes that the reader wants while it optimises.
INLINE_BYTES = 1024
DIRECTORY = "weights"
AT_ONCE = 3 << 29
"""Bytes of groups that are computed at the same time; a larger one is computed alone."""

_COPIED = 8 << 20


@dataclass(frozen=True)
class Slice:
    """Where one tensor lies: the file's SHA-256, the offset and the length in bytes."""

    sha256: str
    offset: int
    length: int


class WeightStore:
    """The weight files of a build, each written once."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        self._groups: dict[tuple[str, ...], dict[str, Slice]] = {}
        self._lock = threading.Lock()
        self._room = _Room(AT_ONCE)

    def put(self, values: Sequence[ir.Value]) -> Mapping[str, Slice]:
        """Write the tensors of one group, in the order given, unless they were written before."""
        key = tuple(str(value.name) for value in values)
        if key not in self._groups:
            with self._room.taken(sum(map(size_of, values))):
                slices = self._write(values)
            with self._lock:
                self._groups[key] = slices
        return self._groups[key]

    def keep(self, pieces: Iterable[bytes | memoryview]) -> str:
        """Write a file of these bytes, unless there is one; its SHA-256."""
        partial = self.directory / f"{threading.get_ident()}.partial"
        digest = hashlib.sha256()
        with partial.open("wb") as stream:
            for piece in pieces:
                stream.write(piece)
                digest.update(piece)
        sha256 = digest.hexdigest()
        if (self.directory / f"{sha256}.bin").exists():  # one that other stages have links to stays
            partial.unlink()
        else:
            partial.replace(self.directory / f"{sha256}.bin")
        return sha256

    def place(self, sha256: str, directory: Path, *, passing: bool = False) -> File:
        """Put a file of the store into a stage's directory, without a second copy on disk where that is possible.

        Args:
            sha256: the file.
            directory: of the stage.
            passing: the stage is for ourselves and soon gone, so that any number of links will do.

        Returns:
            The entry of ``bundle.toml`` for it.
        """
        path = f"{DIRECTORY}/{sha256}.bin"
        source, target = self.directory / f"{sha256}.bin", directory / path
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            # Some readers refuse data with several links: one link besides the store's, which goes away.
            if (source.stat().st_nlink > 1 and not passing) or not linked(source, target):
                shutil.copyfile(source, target)
        return File(path=path, sha256=sha256, bytes=source.stat().st_size)

    def remove(self) -> None:
        """Remove the store; what was placed stays."""
        shutil.rmtree(self.directory)

    def _write(self, values: Sequence[ir.Value]) -> dict[str, Slice]:
        partial = self.directory / f"{threading.get_ident()}.partial"
        digest = hashlib.sha256()
        spans: list[tuple[str, int, int]] = []
        with partial.open("wb") as stream:
            for value in values:
                assert value.const_value is not None and value.name is not None
                padding = b"\0" * (-stream.tell() % ALIGNMENT)
                start = stream.tell() + len(padding)
                for piece in chain([padding], pieces_of(value.const_value)):
                    stream.write(piece)
                    digest.update(piece)
                spans.append((value.name, start, stream.tell() - start))
        sha256 = digest.hexdigest()
        partial.replace(self.directory / f"{sha256}.bin")
        return {name: Slice(sha256, offset, length) for name, offset, length in spans}


class _Room:
    """A number of bytes that is shared out; who asks for more than is left waits, who wants more than all is alone."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._used = 0
        self._changed = threading.Condition()

    @contextmanager
    def taken(self, size: int) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._used or self._used + size <= self.size)
            self._used += size
        try:
            yield
        finally:
            with self._changed:
                self._used -= size
                self._changed.notify_all()


def pieces_of(tensor: ir.TensorProtocol) -> Iterator[bytes | memoryview]:
    """The bytes of a tensor as a file holds them; what lies in a file is never whole in memory."""
    if isinstance(tensor, ir.ExternalTensor):
        with Path(tensor.path).open("rb") as stream:
            stream.seek(tensor.offset or 0)
            left = tensor.nbytes
            while left and (data := stream.read(min(left, _COPIED))):
                left -= len(data)
                yield data
        if left:
            raise InputError(
                "external-data-short",
                f"{tensor.location} ends before the data of {tensor.name}",
                hint="the file was changed during the build; build again",
            )
    elif tensor.dtype == ir.DataType.STRING or tensor.dtype.bitwidth < 8:
        yield tensor.tobytes()
    else:
        yield np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def can_link(directory: Path) -> bool:
    """Whether files in ``directory`` can have several names."""
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        (Path(folder) / "one").touch()
        return linked(Path(folder) / "one", Path(folder) / "other")


def linked(source: Path, target: Path) -> bool:
    """Try to make a hard link; some file systems have none."""
    try:
        os.link(source, target)
    except OSError:
        return False
    return True


def size_of(value: ir.Value) -> int:
    """Bytes of an initializer."""
    assert value.const_value is not None
    return value.const_value.nbytes
