"""The wheels that a Pi really gets, from the package index: for its processor, its Pythons, its memory pages."""

from __future__ import annotations

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
