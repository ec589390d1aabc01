"""The forms for GPUs and NPUs on OpenVINO's CPU plugin: there is no such device here.

The real model in two stages of each has the tokens of the uncut model, alone and in company, and those of the form for
CPUs; and one build has all three forms.
"""

from __future__ import annotations

import json
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
from ruvrun.executors.openvino.forms import VARIABLE, all_on_cpu
from ruvrun.manifest import load_manifest
from ruvrun.pipeline import join_local
from tests.commands.served import command
from tests.decoders import Stage, ask
from tests.models import smollm2_path, write_tiny_gguf

pytestmark = pytest.mark.system
FLEET = "format = 1\n" + "".join(
    f'[[node]]\nname = "{kind}"\ntarget = "intel-{kind}"\naddress = "local"\nthreads = 1\n'
    for kind in ("gpu", "npu", "cpu")
)

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


@pytest.mark.model
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


def test_one_pc_whose_gpu_npu_and_cpu_are_three_stages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the command to the answer. Without a word from a person nothing runs where it is not meant to."""
    write_tiny_gguf(tmp_path / "tiny.gguf", layers=3, ffn=128)
    (tmp_path / "fleet.toml").write_text(FLEET)
    build = ("ruvcompile", "build", tmp_path / "tiny.gguf", "--fleet", tmp_path / "fleet.toml", "--stages", 3)
    run = ("ruvrun", "run", tmp_path / "dist/manifest.toml", "--prompt", "hello", "--max-tokens", 5, "--json")
    monkeypatch.delenv(VARIABLE, raising=False)
    refused = command(*build, "-o", tmp_path / "dist")
    assert (refused.returncode, "it sees: CPU (" in refused.stderr) == (4, True)
    monkeypatch.setenv(VARIABLE, "CPU")
    built = command(*build, "-o", tmp_path / "dist")
    assert built.returncode == 0, built.stderr
    manifest = load_manifest(tmp_path / "dist/manifest.toml")
    assert {stage.backend for stage in manifest.stage} == {"openvino", "openvino-gpu", "openvino-npu"}
    answered = command(*run)
    assert answered.returncode == 0, answered.stderr
    assert len(json.loads(answered.stdout)["tokens"]) == 5
    # Nothing slides on an NPU: where the context is used up the answer ends, and says why.
    longest = manifest.space.context
    ended = json.loads(command(*run[:-2], 2 * longest, "--json").stdout)
    assert ended["finish_reason"] == "length"
    assert ended["prompt_tokens"] + len(ended["tokens"]) == longest
    monkeypatch.delenv(VARIABLE)
    assert command(*run).returncode == 4
    verified = command("ruvcompile", "verify", tmp_path / "dist/manifest.toml", "--json")
    assert verified.returncode == 0, verified.stderr
    assert json.loads(verified.stdout)["identical"] is True
