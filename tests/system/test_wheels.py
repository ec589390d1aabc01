"""The wheels that a Pi really gets, from the package index: for its processor, its Pythons, its memory pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import parse_wheel_filename

import ruvrun
from ruvcompile.targets import load_target, requirements
from ruvcompile.wheels.pages import too_fine
from ruvcompile.wheels.place import kinds
from ruvcompile.wheels.resolve import required
from ruvcompile.wheels.shelf import Shelf
from tests.compiler.builds import build
from tests.models import write_tiny_gguf
from tests.wheelhouse import without_network

pytestmark = pytest.mark.system

CASES = [
    ("pi5", "onnxruntime", ("3.11", "3.13")),
    ("x86-64", "openvino", ("3.12",)),
]


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Shelf:
    return Shelf(tmp_path_factory.mktemp("wheels"))


@pytest.mark.parametrize(("name", "backend", "pythons"), CASES)
def test_a_node_gets_all_that_it_installs(shelf: Shelf, name: str, backend: str, pythons: tuple[str, ...]) -> None:
    target = load_target(name).on(backend)
    for kind in kinds(target, pythons):
        series = tuple(map(int, kind.python.split(".")))
        interpreter = f"cp{series[0]}{series[1]}"
        able = {*cpython_tags(series, platforms=kind.platforms), *compatible_tags(series, interpreter, kind.platforms)}
        files = [shelf.folder / each for each in shelf.wheels(requirements(target, head=True), kind)]
        found = {parse_wheel_filename(path.name)[0]: path for path in files}
        assert {"ruvrun", backend, "numpy", "pyzmq", "tokenizers", "starlette", "pip"} <= found.keys()
        for path in files:
            assert parse_wheel_filename(path.name)[3] & able, f"{path.name} is not for {kind}"
            assert not too_fine(path, kind.page)
            for each in required(path, (), kind):
                assert each.specifier.contains(str(parse_wheel_filename(found[_name(each.name)].name)[1])), each
        extras = required(found["ruvrun"], ("head", backend), kind)
        assert {_name(each.name) for each in extras} <= found.keys()
        assert parse_wheel_filename(found["ruvrun"].name)[1].public == ruvrun.__version__


def _name(text: str) -> str:
    return text.lower().replace("_", "-").replace(".", "-")


def test_what_is_kept_is_not_asked_for_again(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    (kind,) = kinds(load_target("pi5"), ["3.11"])
    asked = requirements(load_target("pi5"), head=False)
    first = shelf.wheels(asked, kind)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    assert shelf.wheels(asked, kind) == first
    assert all((Path(shelf.folder) / name).is_file() for name in first)


def test_a_bundle_installs_itself_without_a_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On this machine and its Python: with pip out of its own wheel, and all it needs out of ``node/wheels``."""
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    model = write_tiny_gguf(tmp_path / "tiny.gguf")
    build(model, tmp_path / "dist", target="x86-64", nodes="2", backend="onnxruntime", wheels=python)
    bundle, root = tmp_path / "dist" / "bundles" / "x86-64-0", tmp_path / "root"
    without_network(monkeypatch)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    line = [bundle / "node/install.sh", "--root", root, "--python", sys.executable]
    done = subprocess.run([str(each) for each in line], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    launcher = next(root.glob("opt/ruvrun/*/ruvrun"))
    said = subprocess.run([str(launcher), "--version"], capture_output=True, text=True, check=True)
    assert ruvrun.__version__ in said.stdout
    wheel = next((bundle / "node/wheels").glob("msgspec-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1] + b"x")
    again = subprocess.run(
        [*map(str, line), "--name", "other", "--port", "8001"], capture_output=True, text=True, check=False
    )
    assert (again.returncode, "error[wheels-altered]" in again.stderr) == (5, True)
