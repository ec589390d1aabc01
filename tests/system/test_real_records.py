"""What the record of a real model's stage notices: values a hundred times as large as others cover no fault."""

from __future__ import annotations

from pathlib import Path

import pytest

from ruvcompile import passes as ways
from ruvcompile.load import load
from ruvcompile.passes.pieces import program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from tests.compiler.records import checked, passes, recorded, turned, unrounding, written
from tests.decoders import Stage
from tests.models import smollm2_path

pytestmark = [pytest.mark.system, pytest.mark.model]

MATRICES = ("layers.6.mlp.gate_proj", "layers.7.attn.q_proj", "layers.12.attn.k_proj")


@pytest.fixture(scope="module")
def program() -> Program:
    return quantise(ways.run(load(str(smollm2_path()))), "int4")


@pytest.fixture(scope="module")
def right(program: Program, tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """The first half of the model, whose first token carries such values."""
    return recorded(program, tmp_path_factory.mktemp("right"), "onnxruntime", len(program_units(program)) // 2)[0]


def test_a_cpu_that_rounds_and_one_that_does_not_pass(right: Stage) -> None:
    assert checked(right) == 0.0
    assert unrounding(right) > 0.0


@pytest.mark.parametrize("name", MATRICES)
def test_one_wrong_matrix_of_fifteen_layers_does_not(program: Program, right: Stage, tmp_path: Path, name: str) -> None:
    with turned(program, f"{name}.weight.int4.linear"):
        wrong = written(program, tmp_path, "onnxruntime", len(program_units(program)) // 2).stages[0]
    assert not passes(right, wrong)
