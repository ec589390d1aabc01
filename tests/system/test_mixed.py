"""A pipeline over both back ends, for real: served, a stage of it killed; and the real model on all four ways."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.passes.quantise import ACCURACY, quantise
from ruvcompile.progress import Silent
from ruvcompile.verify.equality import measure
from ruvrun.manifest import load_manifest
from tests.commands.served import await_status, complete, get, said, serving, until
from tests.compiler.builds import build
from tests.mixed import ONNX, OPEN, four_ways, write_fleet
from tests.models import smollm2_path, write_tiny_gguf

pytestmark = pytest.mark.system

TOKENS = 96


@pytest.mark.parametrize("kinds", [("host", "intel-cpu"), ("intel-cpu", "host")], ids=" + ".join)
def test_either_stage_may_be_killed_and_answers_are_the_same_when_it_is_back(kinds, tmp_path) -> None:
    fleet = write_fleet(tmp_path, *kinds)
    build(write_tiny_gguf(tmp_path / "tiny.gguf"), tmp_path / "dist", fleet=str(fleet), stages=2)
    manifest: Path = tmp_path / "dist" / "manifest.toml"
    assert {stage.backend for stage in load_manifest(manifest).stage} == {ONNX, OPEN}
    with serving(manifest, "--port", "0") as served:
        url = served.ready()
        before = said(complete(url, max_tokens=48))
        for stage in ("stage a", "stage b"):
            os.kill(served.children()[stage], signal.SIGKILL)
            until(lambda: get(url, "/health")[0] == 503)  # the head has noticed; a stage takes longer to load
            await_status(url, "ready")
            assert said(complete(url, max_tokens=48)) == before, stage


@pytest.mark.model
@pytest.mark.parametrize("activations", ["float", "int8"])
def test_smollm2_is_within_its_bounds_on_all_four_ways(activations, tmp_path) -> None:
    program = quantise(passes.run(load(str(smollm2_path()))), "int4", accuracy=ACCURACY[activations])
    for each in measure(program, four_ways(program, tmp_path), TOKENS, tmp_path / "uncut", 1, Silent()):
        assert each.exact is (activations == "float")
        assert each.found.tokens == TOKENS
        assert each.beyond == [], each.as_json()
