"""The golden check is passed by every CPU of a target, whether it rounds activations or not, and by no other stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ruvcompile.parts import Stage, run_parts
from ruvcompile.program import Program
from ruvcompile.rounding import unrounded
from ruvrun.bundle import load_spec
from ruvrun.errors import IntegrityError
from ruvrun.executors.openvino import cpu
from ruvrun.record import read_record
from tests.compiler.builds import build
from tests.compiler.records import checked, passes, recorded, share, turned, unrounding, written
from tests.decoders import tiny_program
from tests.models import write_tiny_gguf

BACK_ENDS = ("onnxruntime", "openvino")
GROUPS = "DYNAMIC_QUANTIZATION_GROUP_SIZE"


@pytest.fixture(params=BACK_ENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def a_program(folder: Path, **form: object) -> Program:
    folder.mkdir(exist_ok=True)
    return tiny_program(folder, **{"layers": 3, **form})  # type: ignore[arg-type] # handed on as it came


def test_a_cpu_that_does_not_round_activations_passes(tmp_path: Path, backend: str) -> None:
    (stage,) = recorded(a_program(tmp_path / "model"), tmp_path, backend)
    assert checked(stage) == 0.0
    assert unrounding(stage) > share(stage), "of this stage the target's share would not be enough"
    assert not list(tmp_path.rglob("unrounded.onnx"))


def test_so_does_one_that_rounds_where_the_build_machine_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = cpu._settings
    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_settings", lambda *words, **keys: {**settings(*words, **keys), GROUPS: "0"})
        (stage,) = recorded(a_program(tmp_path / "model"), tmp_path, "openvino")
    assert checked(stage) > share(stage)


def test_what_is_for_this_machine_is_held_to_the_share_alone(tmp_path: Path, backend: str) -> None:
    (stage,) = recorded(a_program(tmp_path / "model"), tmp_path, backend, target="host")
    assert stage[1].golden is not None
    assert stage[1].golden.bound == pytest.approx(share(stage), rel=1e-2)
    with pytest.raises(IntegrityError, match="does not compute"):
        unrounding(stage)


def test_what_rounds_nothing_is_held_to_the_share_alone(tmp_path: Path, backend: str) -> None:
    (stage,) = recorded(a_program(tmp_path / "model", accuracy=1), tmp_path, backend)
    assert stage[1].golden is not None
    assert stage[1].golden.bound == pytest.approx(share(stage), rel=1e-2)


def test_a_fleet_that_rounds_nothing_answers_as_the_record_says(tmp_path: Path, backend: str) -> None:
    model = write_tiny_gguf(tmp_path / "tiny.gguf", layers=4)
    build(model, tmp_path / "dist", target="x86-64", nodes="a,b", backend=backend, context=64)
    record = read_record(tmp_path / "dist/manifest.toml")
    bundles = [tmp_path / "dist/bundles" / node for node in "ab"]
    stages = unrounded((path, load_spec(path)) for path in bundles)
    logits = run_parts(stages, record.inputs, rows=1, threads=1)["logits"]
    wanted = record.outputs["logits"]
    assert 0.0 < np.abs(logits - wanted).max() <= record.share * np.abs(wanted).max()


# What is wrong with a stage


def faults(program: Program) -> Iterator[str]:
    """Each fault of the weights in turn, while ``program`` has it."""
    weights = program.model.graph.initializers
    matrices = {str(node.inputs[1].name) for node in program.model.graph if node.op_type == "MatMulNBits"}
    assert len(matrices) > 10
    for name in sorted(matrices):
        with turned(program, name):
            yield f"the rows of {name} are in another order"
    for name in sorted(name for name in weights if name.startswith("layers.0.")):
        _swap(weights[name], weights[name.replace("layers.0.", "layers.1.", 1)])
    yield "layers are in another order"


def _swap(one: ir.Value, other: ir.Value) -> None:
    one.const_value, other.const_value = other.const_value, one.const_value


def test_wrong_weights_do_not_pass(tmp_path: Path, backend: str) -> None:
    program = a_program(tmp_path / "model")
    (right,) = recorded(program, tmp_path / "right", backend)
    for number, fault in enumerate(faults(program)):
        assert not passes(right, wrong(program, tmp_path / str(number), backend)), fault


@pytest.mark.parametrize("form", [{"seed": 1}, {"layers": 2}], ids=["weights", "layers"])
def test_another_build_does_not_pass(tmp_path: Path, backend: str, form: dict[str, object]) -> None:
    (right,) = recorded(a_program(tmp_path / "model"), tmp_path / "right", backend)
    assert not passes(right, wrong(a_program(tmp_path / "other", **form), tmp_path / "wrong", backend))


def wrong(program: Program, folder: Path, backend: str) -> Stage:
    (stage,) = written(program, folder, backend).stages
    return stage


def test_a_stage_of_a_large_model_is_measured_part_by_part(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = a_program(tmp_path / "model")
    (whole,) = recorded(program, tmp_path / "whole", backend)
    monkeypatch.setattr("ruvcompile.parts.PART_BYTES", 0)
    (parted,) = recorded(program, tmp_path / "parted", backend)
    assert parted[1] == whole[1]
