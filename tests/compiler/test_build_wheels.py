"""``--wheels``: bundles that need no network to install, and the mistakes that can be made with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

import ruvrun
from ruvcompile.errors import UnreachableError, UsageError
from ruvcompile.progress import Silent
from ruvcompile.targets import fleet_targets
from ruvcompile.wheels import check_wheels, shelf_of
from ruvrun.bundle import load_spec
from tests.compiler.builds import build, check_whole, options, rates, snapshot
from tests.wheelhouse import only_from, wheelhouse, without_network

NODES = ("pi5-0", "pi5-1")


@pytest.fixture(scope="module")
def built(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A build for two Pis, with wheels for two Pythons; beside it the shelf."""
    place = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ruvcompile.measure.fleet.measure_rates", rates)
        only_from(patch, wheelhouse(place / "house", pythons=("311", "313")))
        build(model, place / "dist", target="pi5", nodes="2", wheels="3.11,3.13")
    return place / "dist"


def _wheels(output: Path, node: str) -> set[str]:
    return {path.name for path in (output / "bundles" / node / "node" / "wheels").glob("*.whl")}


def test_a_bundle_has_all_that_is_installed_from_it(built: Path) -> None:
    for node in NODES:
        folder = built / "bundles" / node / "node" / "wheels"
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=folder, check=True)
        listed = {line.split("  ")[1] for line in (folder / "SHA256SUMS").read_text().splitlines()}
        assert listed == _wheels(built, node)
        assert f"ruvrun-{ruvrun.__version__}-py3-none-any.whl" in listed
        assert {"pip-99.0-py3-none-any.whl", "click-99.0-py3-none-any.whl"} <= listed
        for python in ("311", "313"):
            assert f"onnxruntime-99.0-cp{python}-cp{python}-manylinux_2_28_aarch64.whl" in listed
        wanted = (built / "bundles" / node / "node" / "requirements.txt").read_text().splitlines()
        assert f"ruvrun[onnxruntime]=={ruvrun.__version__}" in wanted
        assert (f"ruvrun[head]=={ruvrun.__version__}" in wanted) is (node == NODES[0])


def test_a_python_of_its_systems_that_was_left_out_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    monkeypatch.setattr(Silent, "note", lambda _, text: told.append(text))
    only_from(monkeypatch, wheelhouse(tmp_path / "house", pythons=("312", "313")))
    asked = options(model, tmp_path / "dist", target="pi5", nodes="2", wheels="3.12,3.13")
    check_wheels(asked, fleet_targets(asked), Silent(), shelf_of(asked))
    assert told == ["no wheels for Python 3.11, which systems of pi5 have"]


def test_only_the_head_has_what_only_the_head_needs(built: Path) -> None:
    more = _wheels(built, NODES[0]) - _wheels(built, NODES[1])
    assert {name.split("-")[0] for name in more} == {"tokenizers", "jinja2", "starlette", "uvicorn"}


def test_equal_wheels_are_on_the_disk_once(built: Path) -> None:
    name = "click-99.0-py3-none-any.whl"
    files = [built / "bundles" / node / "node" / "wheels" / name for node in NODES]
    kept = built.parent / ".ruvcompile" / "wheels" / name
    assert len({path.stat().st_ino for path in (*files, kept)}) == 1


def test_no_stage_is_another_for_them(built: Path, model: Path, tmp_path: Path) -> None:
    check_whole(built)
    for node in NODES:
        spec = load_spec(built / "bundles" / node)
        assert not [file.path for file in spec.files if file.path.startswith("node/")]
    build(model, tmp_path / "dist", target="pi5", nodes="2", costs=(str(built / "costs.toml"),))
    for node in NODES:
        one, other = (place / "bundles" / node / "bundle.toml" for place in (built, tmp_path / "dist"))
        assert one.read_bytes() == other.read_bytes()
        assert not (tmp_path / "dist" / "bundles" / node / "node" / "wheels").exists()


def test_the_next_build_needs_no_network_and_is_the_same(
    built: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(monkeypatch)
    costs = built.parent / "given.toml"
    costs.write_bytes((built / "costs.toml").read_bytes())
    first = snapshot(built)
    build(model, built, target="pi5", nodes="2", wheels="3.13,3.11", costs=(str(costs),))
    assert snapshot(built) == first


def test_without_a_network_nothing_is_measured_first(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_network(monkeypatch)
    monkeypatch.setattr("ruvcompile.compile.read_model", None)
    with pytest.raises(UnreachableError) as caught:
        build(model, tmp_path / "dist", target="pi5", nodes="2", wheels="3.11")
    assert caught.value.ref == "wheels-unreachable"
    assert "for Python 3.11 on aarch64" in caught.value.message
    assert not (tmp_path / "dist").exists()


@pytest.mark.parametrize(
    ("flags", "ref"),
    [
        ({"wheels": "3.9"}, "wheels-none"),
        ({"wheels": "3.11,three"}, "wheels-invalid"),
        ({"wheels": "3.11", "target": "host"}, "wheels-local"),
    ],
)
def test_what_cannot_be_is_told(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: dict[str, str], ref: str
) -> None:
    only_from(monkeypatch, wheelhouse(tmp_path / "house"))
    with pytest.raises(UsageError) as caught:
        build(model, tmp_path / "dist", **{"target": "pi5", "nodes": "2", **flags})
    assert caught.value.ref == ref


def test_a_python_without_a_back_end_is_told(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only_from(monkeypatch, wheelhouse(tmp_path / "house", pythons=("311",)))
    (tmp_path / "house" / "onnxruntime-99.0-cp311-cp311-manylinux_2_28_aarch64.whl").unlink()
    with pytest.raises(UsageError) as caught:
        build(model, tmp_path / "dist", target="pi5", nodes="2", wheels="3.11")
    assert caught.value.message == "there is no wheel of onnxruntime>=1.32 for Python 3.11 on aarch64"
