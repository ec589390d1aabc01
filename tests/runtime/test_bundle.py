"""A bundle is checked whole before anything of it is loaded, and nothing is loaded that was not checked."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from ruvrun.bundle import BUNDLE, HEAD, File, Golden, StageSpec, load_spec, verify_bundle, verify_head
from ruvrun.errors import IntegrityError
from ruvrun.manifest import Manifest, dump_toml, load_manifest
from tests.runtime.builds import write_build

replace = msgspec.structs.replace


def rewritten(directory: Path, change: Callable[[StageSpec], StageSpec]) -> tuple[Path, Manifest]:
    """The bundle of a build's only node with another ``bundle.toml``, and a manifest that says so."""
    manifest = load_manifest(write_build(directory, ["a"]))
    bundle = directory / "bundles" / "a"
    (bundle / BUNDLE).write_bytes(dump_toml(change(load_spec(bundle))))
    digest = hashlib.sha256((bundle / BUNDLE).read_bytes()).hexdigest()
    return bundle, replace(manifest, stage=[replace(manifest.stage[0], sha256=digest)])


def test_a_bundle_as_it_was_built(tmp_path: Path) -> None:
    bundle, manifest = rewritten(tmp_path, lambda spec: spec)
    assert verify_bundle(bundle, manifest, 0) == load_spec(bundle)


@pytest.mark.parametrize("name", ["../../elsewhere", "weights/../../../elsewhere", "/etc/hostname"])
def test_a_file_outside_the_bundle_is_not_part_of_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "elsewhere").write_bytes(b"x")
    listed = File(path=name, sha256=hashlib.sha256(b"x").hexdigest(), bytes=1)
    bundle, manifest = rewritten(tmp_path, lambda spec: replace(spec, files=[*spec.files, listed]))
    with pytest.raises(IntegrityError, match="outside") as error:
        verify_bundle(bundle, manifest, 0)
    assert error.value.ref == "bundle-wrong"


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: replace(spec, model="other.onnx"),
        lambda spec: replace(spec, golden=Golden(file="../golden.npz", bound=1.0)),
    ],
)
def test_what_is_loaded_must_be_listed(tmp_path: Path, change: Callable[[StageSpec], StageSpec]) -> None:
    bundle, manifest = rewritten(tmp_path, change)
    (bundle / "other.onnx").write_bytes(b"x")
    with pytest.raises(IntegrityError) as error:
        verify_bundle(bundle, manifest, 0)
    assert error.value.ref == "bundle-wrong"


def test_the_heads_files_are_those_of_the_manifest(tmp_path: Path) -> None:
    bundle, manifest = rewritten(tmp_path, lambda spec: spec)
    text = bundle / HEAD / "tokenizer.json"
    program = replace(manifest.program, files={"tokenizer.json": hashlib.sha256(b"{}").hexdigest()})
    for content, ref in ((None, "bundle-incomplete"), (b"{ }", "bundle-altered")):
        if content is not None:
            text.write_bytes(content)
        with pytest.raises(IntegrityError) as error:
            verify_head(bundle, program)
        assert error.value.ref == ref
    text.write_bytes(b"{}")
    verify_head(bundle, program)
    with pytest.raises(IntegrityError, match="outside"):
        verify_head(bundle, replace(program, files={"../../bundle.toml": "0"}))
