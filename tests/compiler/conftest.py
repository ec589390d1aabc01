"""What tests of several files begin with: a folder, a llama of random numbers on disk and what it costs, so many cores,
a graph for an accelerator, a bundle to install."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from ruvcompile.lower.weights import WeightStore
from ruvrun.costs import load_costs
from tests.checkpoints import CONFIGS, Tensors, random_tensors, write_directory
from tests.compiler.accelerators import detecting
from tests.compiler.builds import build, write_costs
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


@pytest.fixture(scope="module")
def two_cores() -> Iterator[None]:
    """Two nodes on this machine get one thread each, whatever machine this is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ruvcompile.compile.cores", lambda: 2)
        patch.setattr("ruvcompile.compile.allowed", lambda: {0, 1})
        yield


@pytest.fixture
def three_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of three nodes may have a core of its own."""
    monkeypatch.setattr("ruvcompile.compile.allowed", lambda: {0, 1, 2})


@pytest.fixture(scope="module")
def costs(two_cores: None, model: Path, folder: Path) -> Path:
    """Rows of this model for one thread; every unit costs 1 ms."""
    build(model, folder / "measured")
    return write_costs(folder / "even.toml", load_costs(folder / "measured" / "costs.toml"), {})


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
