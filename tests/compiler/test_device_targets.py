"""The targets for GPUs and NPUs: what a node of them is given, and how a machine that has neither builds for them."""

from __future__ import annotations

import configparser
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.golden import add_golden
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.measure import profiled
from ruvcompile.measure.decoder import measure_decoder
from ruvcompile.measure.terms import Terms
from ruvcompile.parts import Parts
from ruvcompile.passes.pieces import pieces, program_units, unit_keys
from ruvcompile.program import Program
from ruvcompile.progress import Silent
from ruvcompile.render import render_node
from ruvcompile.targets import load_target
from ruvcompile.verify.staged import same_tokens
from ruvrun.backends import BACK_ENDS
from ruvrun.bundle import load_spec
from ruvrun.executors.openvino.forms import DEVICE, VARIABLE
from tests.decoders import tiny_program
from tests.nodes import STAGE

TARGETS = {"intel-gpu": ("drm", "intel-opencl-icd"), "intel-npu": ("accel", "intel-level-zero-npu")}


@pytest.fixture(autouse=True)
def nothing_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Program:
    return tiny_program(tmp_path_factory.mktemp("tiny"), layers=1, ffn=128)


@pytest.mark.parametrize("name", TARGETS)
def test_a_node_is_told_of_its_driver_and_may_open_its_device(name: str) -> None:
    target, (device, driver) = load_target(name), TARGETS[name]
    assert target.kv_types == ("f16", "f32")
    assert set(target.kv_types) <= BACK_ENDS[target.backend].kinds
    files = {file: content.decode() for file, content in render_node(target, STAGE).items()}
    assert driver in files["README.md"]
    assert "no stage of this project has been on" in files["README.md"]
    assert "\n# RUVRUN_DEVICE=CPU\n" in files["ruvrun.env"]
    assert f"\ndevices=({device})\n" in files["install.sh"]
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.read_string(files["ruvrun.service"])
    service = parser["Service"]
    assert service["deviceallow"] == f"char-{device} rw"
    assert service["devicepolicy"] == "closed"
    assert service["supplementarygroups"] == "render"
    assert "privatedevices" not in service


def test_a_node_without_such_a_device_may_open_none() -> None:
    files = {file: content.decode() for file, content in render_node(load_target("intel-cpu"), STAGE).items()}
    allowed = re.findall("^DeviceAllow=(.*)$", files["ruvrun.service"], re.MULTILINE)
    assert allowed == ["/dev/cpu_dma_latency w"], "which it asks to keep the cores awake"
    assert "\nDevicePolicy=closed\n" in files["ruvrun.service"]
    assert "render" not in files["ruvrun.service"]
    assert "RUVRUN_DEVICE" not in "".join(files.values())


@pytest.mark.parametrize("name", TARGETS)
def test_the_machine_that_builds_needs_no_such_device(program, tmp_path: Path, name: str) -> None:
    """Golden values and comparisons are made on its CPU; the bundle says nothing of that."""
    target, store, units = load_target(name), WeightStore(tmp_path / "store"), program_units(program)
    chosen, stages = pieces(program, units, (2,)), []
    for number, piece in enumerate(chosen):
        path = tmp_path / f"{number}"
        kind = {"backend": target.backend, "target": name, "kv_type": target.kv_type}
        stages.append((path, write_stage(program, piece, path, store, **kind)))
    parts = Parts(program, units, chosen, stages, store, tmp_path)
    specs = add_golden(parts, {}, [target] * 2)
    assert all(spec.golden is not None and DEVICE not in spec.options for spec in specs)
    assert [load_spec(path) for path, _ in stages] == specs
    (piece,) = pieces(program, units, ())
    whole = (tmp_path / "whole", write_stage(program, piece, tmp_path / "whole", store, **kind))
    assert same_tokens(program, [(path, spec) for (path, _), spec in zip(stages, specs, strict=True)], [whole]).same


@pytest.mark.parametrize(("target", "moved"), [("host", True), ("intel-gpu", False)])
def test_what_is_measured_for_another_machine_is_measured_on_the_cpu(
    program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, moved: bool
) -> None:
    commands: list[list[str]] = []

    @contextmanager
    def started(command: list[str]) -> Iterator[Any]:
        commands.append(command)
        raise InterruptedError
        yield

    monkeypatch.setattr(profiled, "_started", started)
    units = program_units(program)
    terms = Terms(target, "openvino-gpu", 1, 1, WeightStore(tmp_path / "store"), tmp_path, Silent())
    with pytest.raises(InterruptedError):
        measure_decoder(program, units, unit_keys(program, units), terms)
    assert (commands[0][:2] == ["env", "RUVRUN_DEVICE=CPU"]) is moved


def test_types_of_keys_and_values_that_a_form_has_not_are_no_choice() -> None:
    both = replace(load_target("intel-gpu"), backends=("openvino", "openvino-gpu"), kv_types=("u8", "f16", "f32"))
    assert both.on("openvino-gpu").kv_types == ("f16", "f32")
    assert both.on("openvino").kv_types == ("u8", "f16", "f32")
