"""What tests of several files begin with: a folder, a llama of random numbers on disk, a graph for an accelerator,
a bundle to install."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from ruvcompile.lower.weights import WeightStore
from tests.checkpoints import CONFIGS, Tensors, random_tensors, write_directory
from tests.compiler.accelerators import detecting
from tests.installs import Installed, write_bundle
from tests.models import write_tiny_gguf


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what all tests of a file use."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def store(folder: Path) -> WeightStore:
    return WeightStore(folder / "store")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """A decoder of random numbers, in one file."""
    return write_tiny_gguf(folder / "tiny.gguf")


@pytest.fixture(scope="session")
def tensors() -> Tensors:
    return random_tensors(CONFIGS["llama"])


@pytest.fixture
def checkpoint(tmp_path: Path, tensors: Tensors) -> Path:
    """A checkpoint directory, its weights in one file."""
    return write_directory(tmp_path / "tiny", CONFIGS["llama"], tensors)


@pytest.fixture
def sharded(tmp_path: Path, tensors: Tensors) -> Path:
    """The same in three shards."""
    return write_directory(tmp_path / "tiny", CONFIGS["llama"], tensors, shards=3)


@pytest.fixture
def detector(tmp_path: Path) -> Path:
    path = tmp_path / "detector.onnx"
    onnx.save(detecting(), path)
    return path


@pytest.fixture
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return write_bundle(tmp_path / "bundle")


@pytest.fixture
def here(tmp_path: Path) -> Installed:
    """Where it is installed: a root that has nothing, not even users."""
    (tmp_path / "root").mkdir()
    return Installed(tmp_path / "root")
