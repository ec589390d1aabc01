"""What doctor says of Python, packages, back ends and cores, each with why it matters and what to type."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from ruvrun import machine
from ruvrun.bundle import BUNDLE, load_spec
from ruvrun.doctor import Finding, software, stages
from ruvrun.manifest import dump_toml
from ruvrun.placement import Placement, place
from tests.runtime.builds import write_build


@pytest.fixture
def placement(tmp_path: Path) -> Placement:
    return place(write_build(tmp_path))


def unwell(found: Iterator[Finding]) -> dict[str, Finding]:
    bad = {one.check: one for one in found if one.state != "ok"}
    for one in bad.values():
        assert one.why, f"{one.check}: why does that matter?"
        assert one.hint, f"{one.check}: and what is there to type?"
    return bad


def test_a_good_machine_is_told_with_its_versions(placement: Placement) -> None:
    assert unwell(software.python()) == {}
    assert unwell(software.packages(placement)) == {}
    seen = {one.check: one.seen for one in software.packages(placement)}
    assert {"package ruvrun", "package numpy", "package onnxruntime", "package uvicorn"} <= seen.keys()
    assert all(text[0].isdigit() for text in seen.values())


def test_an_old_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software.sys, "version_info", (3, 9, 2))
    found = unwell(software.python())["python"]
    assert (found.state, found.exit_code, "3.11 or newer is needed" in found.seen) == ("fail", 7, True)
    assert "--python python3.11" in str(found.hint)


def test_a_package_that_is_not_there(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(software, "HEAD_PACKAGES", ("no-such-package",))
    found = unwell(software.packages(placement))["package no-such-package"]
    assert (found.seen, found.hint, found.exit_code) == ("not installed", "pip install 'ruvrun[head]'", 3)


def test_a_package_that_is_older_than_the_bundle_asks(placement: Placement, tmp_path: Path) -> None:
    bundle = tmp_path / "bundles/a"
    spec = msgspec.structs.replace(load_spec(bundle), requires={"onnxruntime": "99.1"})
    (bundle / BUNDLE).write_bytes(dump_toml(spec))
    found = unwell(software.packages(placement))["package onnxruntime"]
    assert "is older than 99.1, which the bundle requires" in found.seen
    assert found.hint == "pip install 'ruvrun[onnxruntime]' --upgrade"


def test_a_back_end_that_this_version_does_not_know(placement: Placement) -> None:
    later = [msgspec.structs.replace(stage, backend="quantum") for stage in placement.manifest.stage]
    manifest = msgspec.structs.replace(placement.manifest, stage=later)
    found = unwell(software.packages(replace(placement, manifest=manifest)))["back end quantum"]
    assert (found.hint, found.exit_code) == ("pip install --upgrade ruvrun", 3)


def test_cores_that_are_not_there(placement: Placement, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed", lambda: {0, 1})
    assert unwell(stages.cpus(placement)) == {}
    nodes = [msgspec.structs.replace(node, cpus=[1, 7]) for node in placement.manifest.node]
    manifest = msgspec.structs.replace(placement.manifest, node=nodes)
    found = unwell(stages.cpus(replace(placement, manifest=manifest)))["cpus a"]
    assert (found.seen, found.exit_code) == ("cores [1, 7] are asked for, [0, 1] may be used", 7)


def test_a_byte_that_is_not_as_built(placement: Placement, tmp_path: Path) -> None:
    graph = tmp_path / "bundles/a/stage.onnx"
    assert unwell(stages.bundles(placement)) == {}
    data = bytearray(graph.read_bytes())
    data[0] ^= 1
    graph.write_bytes(data)
    found = unwell(stages.bundles(placement))["bundle a"]
    assert (found.exit_code, hashlib.sha256(data).hexdigest()[:12] in found.seen) == (5, False)
    assert "is not the file the bundle was built with" in found.seen
