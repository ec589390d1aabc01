"""The extra ``huggingface``: models that only transformers has code for, built by the command, against transformers.

The build runs in the environment that ``huggingface.sh`` makes; what was built runs here, without torch.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruvrun.bundle import load_spec
from ruvrun.pipeline import Request, Sampling
from ruvrun.pipeline.local import open_local
from tests.compiler.builds import TWO_STAGES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
MADE_FROM = (
    *(HERE / name for name in ("requirements.txt", "huggingface_reference.py")),
    *(ROOT / name for name in ("pyproject.toml", "runtime/pyproject.toml")),
)
HASH = hashlib.sha256(b"".join(path.read_bytes() for path in MADE_FROM)).hexdigest()[:16]
ENVIRONMENT = ROOT / ".cache" / "reference" / f"huggingface-{HASH}"
MODELS = ENVIRONMENT / "models"
# Decoders, and whether they are run as they were exported: ALiBi is no mask that the canonical form has.
DECODERS = {"gpt_neox": False, "opt": False, "bloom": True}
OTHERS = ("features", "text-classes", "token-classes", "vit", "resnet")
WITHIN = 1e-4

if not (ENVIRONMENT / ".complete").exists() and not os.environ.get("CI"):
    pytest.skip("no environment with the extra: ./tests/run.sh --reference", allow_module_level=True)


def build(name: str, directory: Path) -> tuple[dict[str, Any], str]:
    """Two stages of a model; the command's JSON, and what it told."""
    command = [ENVIRONMENT / "bin" / "ruvcompile", "build", MODELS / name, *TWO_STAGES]
    words = ["--quant", "none", "--json", "-o", directory]
    made = subprocess.run([*command, *words], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr + made.stdout
    return json.loads(made.stdout), made.stderr


@pytest.mark.parametrize("name", DECODERS)
def test_a_decoder_of_another_architecture_answers_as_transformers_does(name: str, tmp_path: Path) -> None:
    result, told = build(name, tmp_path / "dist")
    assert len(result["stages"]) == 2 and "torch loaded the whole model" in told
    specs = [load_spec(path) for path in (tmp_path / "dist" / "bundles").iterdir()]
    assert [spec.exported for spec in specs] == [DECODERS[name]] * 2
    assert ("run as it was exported" in told) is DECODERS[name]
    with np.load(MODELS / name / "reference.npz") as stored:
        prompt, wanted = stored["prompt"].tolist(), stored["tokens"].tolist()
    assert len(wanted) == 40 and len(set(wanted)) > 5, "an answer that could be told from another"
    pipeline = open_local(tmp_path / "dist" / "manifest.toml")
    pipeline.chunk = 10
    greedy = Sampling(temperature=0.0, top_p=1.0, seed=0)
    assert pipeline.generate([Request(0, tuple(prompt), len(wanted), greedy, frozenset())])[0] == wanted


@pytest.mark.parametrize("name", OTHERS)
def test_a_model_of_another_task_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    result, told = build(name, tmp_path / "dist")
    assert len(result["stages"]) == 2 and "torch loaded the whole model" in told
    with np.load(MODELS / name / "reference.npz") as stored:
        inputs = {key[3:]: stored[key] for key in stored.files if key.startswith("in.")}
        wanted = {key[4:]: stored[key] for key in stored.files if key.startswith("out.")}
    found = open_local(tmp_path / "dist" / "manifest.toml").run(inputs)
    assert found.keys() == wanted.keys()
    for key, array in wanted.items():
        np.testing.assert_allclose(found[key], array, atol=WITHIN * max(1.0, float(np.abs(array).max())), err_msg=key)
