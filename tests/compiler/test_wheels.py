"""Wheels for a node: which it takes, what they require there, and that a set is kept and the same the next time."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename

import ruvrun
from ruvcompile.errors import FitError, MachineError, RuvError, UnreachableError, UsageError
from ruvcompile.targets import load_target, target_names
from ruvcompile.wheels.download import download
from ruvcompile.wheels.kind import Kind
from ruvcompile.wheels.own import own_wheel
from ruvcompile.wheels.pages import alignment, too_fine
from ruvcompile.wheels.place import kinds
from ruvcompile.wheels.resolve import metadata_of, required, resolve
from ruvcompile.wheels.shelf import Shelf, load_sums
from tests.wheelhouse import only_from, wheel, wheelhouse, without_network

PI = Kind("aarch64", "3.11", "2.36", 16384)


# What a machine takes


def test_a_machine_takes_what_its_c_library_and_older_ones_run() -> None:
    tags = PI.platforms
    assert tags[0] == "manylinux_2_36_aarch64"
    assert {"manylinux_2_28_aarch64", "manylinux_2_17_aarch64", "manylinux2014_aarch64", "linux_aarch64"} <= set(tags)
    assert not [tag for tag in tags if "2_37" in tag or "2_16" in tag or "x86" in tag]
    assert "manylinux1_x86_64" in Kind("x86_64", "3.12", "2.34").platforms


@pytest.mark.parametrize("name", sorted(target_names()))
def test_every_target_has_its_tags(name: str) -> None:
    target = load_target(name)
    pythons = target.pythons or ("3.11",)
    for kind, python in zip(kinds(target, pythons), pythons, strict=True):
        assert kind.machine == target.machine
        assert kind.page == target.page
        assert f"manylinux2014_{target.machine}" in kind.platforms
        assert kind.markers["python_version"] == python
    assert kinds(load_target("pi5"), ["3.11"])[0] == PI


def test_a_python_that_ruvrun_does_not_run_on_has_no_wheel() -> None:
    with pytest.raises(UsageError) as caught:
        kinds(load_target("pi5"), ["3.11", "3.9"])
    assert caught.value.ref == "wheels-none"
    assert f"ruvrun {ruvrun.__version__} for Python 3.9 on aarch64" in caught.value.message


# What they require


def test_markers_are_of_the_machine_that_installs(tmp_path: Path) -> None:
    path = wheel(
        tmp_path,
        "a",
        requires=[
            "old; python_version < '3.12'",
            "new; python_version >= '3.12'",
            "arm; platform_machine == 'aarch64'",
            "pc; platform_machine == 'x86_64'",
            "windows; sys_platform == 'win32'",
            "more; extra == 'x'",
            "most; extra == 'x' and python_version < '3.12'",
        ],
        extras=["x"],
    )
    assert [each.name for each in required(path, (), PI)] == ["old", "arm"]
    assert [each.name for each in required(path, ("x",), PI)] == ["old", "arm", "more", "most"]
    other = Kind("x86_64", "3.13", "2.41")
    assert [each.name for each in required(path, ("x",), other)] == ["new", "pc", "more"]


_NAMES = ("a", "b", "c", "d", "e")


@st.composite
def _indexes(draw: st.DrawFn) -> dict[str, dict[int, list[str]]]:
    """Packages with versions, of which each requires some others at some least or most version."""
    found: dict[str, dict[int, list[str]]] = {}
    for name in _NAMES:
        versions = {}
        for version in range(1, draw(st.integers(1, 3)) + 1):
            others = draw(st.lists(st.sampled_from(_NAMES), max_size=3, unique=True))
            versions[version] = [f"{other}{draw(st.sampled_from(('', '>=1', '<3', '<2')))}" for other in others]
        found[name] = versions
    return found


@settings(deadline=None, max_examples=60)
@given(index=_indexes(), asked=st.lists(st.sampled_from(_NAMES), min_size=1, max_size=3, unique=True))
def test_a_set_is_closed_and_holds_nothing_else(index, asked, tmp_path_factory) -> None:
    folder = tmp_path_factory.mktemp("index")

    def fetch(wanted: Sequence[Requirement]) -> list[Path]:
        paths = []
        for each in wanted:
            version = max(v for v in index[each.name] if each.specifier.contains(str(v)))
            paths.append(wheel(folder, each.name, str(version), index[each.name][version]))
        return paths

    found = {parse_wheel_filename(path.name)[0]: path for path in resolve(asked, PI, fetch)}
    reached = set(map(canonicalize_name, asked))
    for _ in _NAMES:
        reached |= {each.name for name in reached for each in required(found[name], (), PI)}
    for path in found.values():
        for each in required(path, (), PI):
            assert each.specifier.contains(str(parse_wheel_filename(found[each.name].name)[1]))
    assert reached <= found.keys()


# The wheel of ruvrun


def test_the_wheel_of_ruvrun_is_what_runs_here(tmp_path: Path) -> None:
    name, data = own_wheel()
    assert (name, data) == own_wheel()
    (tmp_path / name).write_bytes(data)
    with zipfile.ZipFile(tmp_path / name) as archive:
        assert archive.testzip() is None
        own = Path(ruvrun.__file__).parent
        assert archive.read("ruvrun/stage.py") == (own / "stage.py").read_bytes()
        assert not [each for each in archive.namelist() if "__pycache__" in each]
    assert {each.name for each in required(tmp_path / name, (), PI)} >= {"numpy", "pyzmq", "msgspec", "click"}
    assert "onnxruntime" in {each.name for each in required(tmp_path / name, ("onnxruntime",), PI)}
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", "t", name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    program = "import sys; sys.path.insert(0, 't'); import ruvrun; print(ruvrun.__file__, ruvrun.__version__)"
    said = subprocess.run(
        [sys.executable, "-P", "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, env={}
    )
    assert said.stdout.split()[0].endswith("t/ruvrun/__init__.py")
    assert said.stdout.split()[1] == ruvrun.__version__


def test_it_has_what_a_builder_puts_into_one(tmp_path: Path) -> None:
    program = (
        "import sys; from hatchling.builders.wheel import WheelBuilder;"
        "print(next(WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard'])))"
    )
    line = [sys.executable, "-c", program, str(Path(ruvrun.__file__).parents[1]), str(tmp_path)]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    name, data = own_wheel()
    with zipfile.ZipFile(done.stdout.strip().splitlines()[-1]) as built, zipfile.ZipFile(io.BytesIO(data)) as own:
        theirs = set(built.namelist())
        assert set(own.namelist()) == theirs
        same = [each for each in theirs if "dist-info" not in each or each.endswith("entry_points.txt")]
        assert all(own.read(each).strip() == built.read(each).strip() for each in same)
        assert Path(built.filename or "").name == name


# pip, as it is


def test_pip_takes_the_wheels_of_the_other_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_from(monkeypatch, wheelhouse(tmp_path / "house", pythons=("311", "312")))
    wheel(tmp_path / "house", "numpy", "100.0", tag="cp311-cp311-manylinux_2_28_x86_64")
    wheel(tmp_path / "house", "numpy", "100.0", tag="cp311-cp311-manylinux_2_39_aarch64")
    found = download([Requirement("numpy>=2"), Requirement("click")], PI, tmp_path / "got")
    assert [path.name for path in found] == [
        "numpy-99.0-cp311-cp311-manylinux_2_28_aarch64.whl",
        "click-99.0-py3-none-any.whl",
    ]
    able = {*cpython_tags((3, 11), platforms=PI.platforms), *compatible_tags((3, 11), "cp311", PI.platforms)}
    assert all(parse_wheel_filename(path.name)[3] & able for path in found)


def test_what_there_is_no_wheel_of_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_from(monkeypatch, wheelhouse(tmp_path / "house", pythons=("312",)))
    with pytest.raises(UsageError) as caught:
        download([Requirement("click"), Requirement("onnxruntime>=1.32")], PI, tmp_path / "got")
    assert (caught.value.ref, caught.value.exit_code) == ("wheels-none", 2)
    assert caught.value.message == "there is no wheel of onnxruntime>=1.32 for Python 3.11 on aarch64"


def test_without_a_network_the_wheel_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    without_network(monkeypatch)
    with pytest.raises(UnreachableError) as caught:
        download([Requirement("numpy>=2")], PI, tmp_path / "got")
    assert (caught.value.ref, caught.value.exit_code) == ("wheels-unreachable", 6)
    assert "numpy>=2 for Python 3.11 on aarch64" in caught.value.message


# The shelf


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shelf:
    only_from(monkeypatch, wheelhouse(tmp_path / "house"))
    return Shelf(tmp_path / "shelf")


ASKED = (f"ruvrun[onnxruntime]=={ruvrun.__version__}",)


def _nobody(wanted: Sequence[Requirement], kind: Kind, folder: Path) -> list[Path]:
    raise AssertionError("nobody is to be asked")


def test_a_set_is_made_once(shelf: Shelf) -> None:
    first = shelf.wheels(ASKED, PI)
    names = {parse_wheel_filename(name)[0] for name in first}
    assert names == {"ruvrun", "onnxruntime", "pip", "numpy", "pyzmq", "msgspec", "click", "tomli", "tomli-w"}
    assert all((shelf.folder / name).is_file() for name in first)
    assert Shelf(shelf.folder, _nobody).wheels(ASKED, PI) == first
    assert not list(shelf.folder.glob("wheels-*")), "nothing is left of the download"


def test_another_set_is_asked_for(shelf: Shelf) -> None:
    first = shelf.wheels(ASKED, PI)
    more = shelf.wheels((*ASKED, f"ruvrun[head]=={ruvrun.__version__}"), PI)
    assert more.items() >= first.items()
    assert {"tokenizers", "uvicorn"} <= {parse_wheel_filename(name)[0] for name in more}


def test_a_broken_wheel_is_fetched_again(shelf: Shelf) -> None:
    first = shelf.wheels(ASKED, PI)
    name = next(name for name in first if name.startswith("numpy"))
    (shelf.folder / name).write_bytes(b"half")
    with pytest.raises(AssertionError, match="nobody"):
        Shelf(shelf.folder, _nobody).wheels(ASKED, PI)
    assert shelf.wheels(ASKED, PI) == first
    assert metadata_of(shelf.folder / name).startswith("Metadata-Version")


def test_a_set_that_does_not_come_to_be_leaves_none(shelf: Shelf, tmp_path: Path) -> None:
    (tmp_path / "house" / "onnxruntime-99.0-cp311-cp311-manylinux_2_28_aarch64.whl").unlink()
    with pytest.raises(RuvError) as caught:
        shelf.wheels(ASKED, PI)
    assert caught.value.ref == "wheels-none"
    assert not list(shelf.folder.glob("sets/*"))
    assert [path.name for path in shelf.folder.glob("*.whl")] == [own_wheel()[0]]


def test_sums_are_read_as_they_are_written() -> None:
    assert load_sums("aa  one.whl\nbb  two.whl\n\nnonsense\n") == {"one.whl": "aa", "two.whl": "bb"}


# Memory pages


def _library(multiple: int) -> bytes:
    """The first bytes of a shared library that is mapped in parts which lie at this multiple."""
    head = bytearray(64)
    head[:5] = b"\x7fELF\x02"
    struct.pack_into("<Q", head, 32, 64)
    struct.pack_into("<HH", head, 54, 56, 2)
    parts = b""
    for kind, each in ((6, 8), (1, multiple)):
        part = bytearray(56)
        struct.pack_into("<I", part, 0, kind)
        struct.pack_into("<Q", part, 48, each)
        parts += part
    return bytes(head) + parts


def test_the_page_size_of_a_library_is_read() -> None:
    assert alignment(_library(65536)) == 65536
    assert alignment(_library(4096)) == 4096
    assert alignment(b"#!/bin/sh\n") == 0
    library = next(Path(sys.prefix).rglob("_multiarray_umath*.so"))
    assert alignment(library.read_bytes()[:4096]) >= 4096


def test_a_library_for_smaller_pages_is_told(tmp_path: Path) -> None:
    path = wheel(tmp_path, "fine", files={"fine/core.so": _library(4096), "fine/x.so.1": _library(65536)})
    assert too_fine(path, 16384) == {"fine/core.so": 4096}
    assert too_fine(path, 4096) == {}


def test_a_set_with_such_a_library_is_refused(shelf: Shelf, tmp_path: Path) -> None:
    tag = "cp311-cp311-manylinux_2_28_aarch64"
    wheel(tmp_path / "house", "msgspec", "100", tag=tag, files={"msgspec/_core.so": _library(4096)})
    with pytest.raises(MachineError) as caught:
        shelf.wheels(ASKED, PI)
    assert caught.value.ref == "wheels-pages"
    assert "msgspec-100" in caught.value.message
    assert shelf.wheels(ASKED, Kind("aarch64", "3.11", "2.36", 4096))


def test_a_processor_without_wheels_is_told(tmp_path: Path) -> None:
    from dataclasses import replace

    with pytest.raises(FitError) as caught:
        kinds(replace(load_target("pi5"), arch="riscv64"), ["3.11"])
    assert caught.value.ref == "wheels-machine"
