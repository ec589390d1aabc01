"""The real model in two stages of each form that is made for a GPU or an NPU, on OpenVINO's CPU plugin: there is no
such device here. The tokens are those of the uncut model, alone and in company, and those of the form for CPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.lower.stage import write_stage
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import pieces, program_units
from ruvcompile.passes.quantise import quantise
from ruvcompile.program import Program
from ruvrun.executors.forms import all_on_cpu
from ruvrun.pipeline import join_local
from tests.decoders import Stage, ask
from tests.models import smollm2_path

pytestmark = [pytest.mark.model, pytest.mark.system]

FRANCE = (504, 3575, 282, 4649, 314)  # The capital of France is
PROMPTS = (FRANCE, FRANCE * 30, (28,))
CONTEXT, ANSWER = 192, 16


@pytest.fixture(scope="module")
def program() -> Program:
    return quantise(passes.run(load(str(smollm2_path()))), "int4", accuracy=1)


def answers(stages: Sequence[Stage], *, together: bool) -> dict[int, list[int]]:
    """Greedy answers to all prompts."""
    requests = [ask(number, prompt, ANSWER) for number, prompt in enumerate(PROMPTS)]
    ring = join_local(all_on_cpu(stages), context=CONTEXT, streams=len(PROMPTS) if together else 1, threads=2)
    if together:
        return ring.generate(requests)
    return {request.id: ring.generate([request])[request.id] for request in requests}


@pytest.fixture(scope="module")
def known() -> dict[str, dict[int, list[int]]]:
    """What the forms before have answered."""
    return {}


@pytest.mark.parametrize("backend", ["openvino", "openvino-gpu", "openvino-npu"])
def test_two_stages_say_what_the_whole_model_does(program, known, tmp_path: Path, backend: str) -> None:
    store, units = WeightStore(tmp_path / "store"), program_units(program)

    def written(cuts: Sequence[int]) -> list[Stage]:
        made = []
        for number, piece in enumerate(pieces(program, units, cuts)):
            path = tmp_path / f"{len(cuts)}-{number}"
            made.append((path, write_stage(program, piece, path, store, backend=backend, target="host")))
        return made

    known[backend] = answers(written(()), together=False)
    assert answers(written((len(units) // 2,)), together=True) == known[backend]
    assert known[backend][0][0] == 7042  # Paris
    assert known[backend] == known["openvino"]
