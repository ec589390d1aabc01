"""Weights on disk: one file per group (attention or MLP of a layer, embedding, head), named by its hash.

A decoder's group is the same bytes whatever the cut, so a moved cut copies only the groups that moved; a tied
head is the same file as the embedding. Each group is computed once per build, when it is first written, into
the store; stages link or copy it from there.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

ALIGNMENT = 64
# Smaller tensors stay inside the graph file: shapes and sizes that the reader wants while it optimises.
INLINE_BYTES = 1024
DIRECTORY = "weights"


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

    def put(self, values: Sequence[ir.Value]) -> Mapping[str, Slice]:
        """Write the tensors of one group, in the order given, unless they were written before."""
        key = tuple(str(value.name) for value in values)
        if key not in self._groups:
            slices = self._write(values)
            with self._lock:
                self._groups[key] = slices
        return self._groups[key]

    def place(self, sha256: str, directory: Path) -> Path:
        """Put a file of the store into a stage's directory, without a second copy on disk where that is possible."""
        target = directory / DIRECTORY / f"{sha256}.bin"
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            source = self.directory / f"{sha256}.bin"
            # Some readers refuse data with several links: one link besides the store's, which goes away.
            if source.stat().st_nlink > 1 or not _linked(source, target):
                shutil.copyfile(source, target)
        return target

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
                data = value.const_value.tobytes()
                spans.append((value.name, stream.tell() + len(padding), len(data)))
                for piece in (padding, data):
                    stream.write(piece)
                    digest.update(piece)
        sha256 = digest.hexdigest()
        partial.replace(self.directory / f"{sha256}.bin")
        return {name: Slice(sha256, offset, length) for name, offset, length in spans}


def _linked(source: Path, target: Path) -> bool:
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
