"""Every family against transformers itself: the same logits within 1e-4, and the same 64 tokens.

Once the canonical program as ONNX Runtime runs it as it is, once lowered into two stages. The models are written by
``transformers_reference.py`` in an environment of its own (see ``setup.sh``).
"""

from __future__ import annotations

import hashlib
import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ruvcompile import passes
from ruvcompile.load import load
from ruvcompile.load.families import FAMILIES
from ruvcompile.lower.weights import WeightStore
from ruvcompile.passes.pieces import program_units
from ruvcompile.whole import open_session, run
from ruvrun.executors import Span
from tests.checkpoints import byte_tokenizer
from tests.decoders import ask, open_decoders, open_pipeline, write_stages

HERE = Path(__file__).parent
MADE_FROM = (HERE / "requirements.txt", HERE / "transformers_reference.py")
HASH = hashlib.sha256(b"".join(path.read_bytes() for path in MADE_FROM)).hexdigest()[:16]
MODELS = HERE.parents[1] / ".cache" / "reference" / f"models-{HASH}"
WITHIN = 1e-4
ANSWER = 64

CASES = sorted(path.name for path in MODELS.iterdir()) if MODELS.is_dir() else []
if not CASES and not os.environ.get("CI"):
    pytest.skip("no models of transformers to compare with: ./tests/run.sh --reference", allow_module_level=True)


def test_every_family_is_proven() -> None:
    assert CASES, "no models of transformers: tests/reference/setup.sh has failed"
    assert FAMILIES.keys() == {read_config(name)["model_type"] for name in CASES}


def read_config(name: str) -> dict[str, Any]:
    """The configuration of a case, of its text part where it has several."""
    config: dict[str, Any] = json.loads((MODELS / name / "config.json").read_text("utf-8"))
    return config.get("text_config", config)


class Case:
    """A model of transformers, loaded as a user's, and what transformers says of it."""

    def __init__(self, name: str, folder: Path) -> None:
        with np.load(MODELS / name / "reference.npz") as stored:
            self.prompt, self.tokens, self.logits = stored["prompt"], stored["tokens"], stored["logits"]
        for file in ("config.json", "model.safetensors"):
            (folder / file).symlink_to(MODELS / name / file)
        byte_tokenizer().save(str(folder / "tokenizer.json"))
        self.program = passes.run(load(str(folder)))
        self.ids = np.concatenate([self.prompt, self.tokens])


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def test_the_canonical_program_is_the_model(case: Case) -> None:
    """The prompt at once, then token by token, the state kept outside."""
    decoder = case.program.decoder
    assert decoder is not None
    session = open_session(case.program.model, threads=1)
    empty = np.zeros((1, decoder.kv_heads, 0, decoder.head_size), np.float32)
    state = {f"past_{half}.{n}": empty for half in ("key", "value") for n in range(decoder.layers)}
    found, tokens = [], []
    for start, stop in pairwise([0, *range(len(case.prompt), len(case.ids))]):
        given = {"input_ids": case.ids[None, start:stop], "position_ids": np.arange(start, stop)[None]}
        outputs = run(session, given | state)
        state = {name: outputs[name.replace("past", "present")] for name in state}
        found.append(outputs["logits"][0])
        tokens.append(int(found[-1][-1].argmax()))
    assert np.abs(np.concatenate(found) - case.logits).max() < WITHIN
    assert tokens == case.tokens.tolist()


def test_two_stages_are_the_model(case: Case, tmp_path: Path) -> None:
    """Logits of prompt chunks and single tokens out of the lowered stages; then the answer that the pipeline gives."""
    cut = len(program_units(case.program)) // 2
    stages = write_stages(case.program, (cut,), tmp_path, WeightStore(tmp_path / "store"))
    executors = open_decoders(stages, context=len(case.ids), slots=2)
    found = []
    for start, stop in pairwise([0, 7, 30, *range(len(case.prompt), len(case.ids))]):
        tensors = {"input_ids": case.ids[start:stop]}
        for executor in executors:
            tensors = executor.step([Span(1, start, stop - start, stop - start)], tensors)
        found.append(tensors["logits"].copy())
    assert np.abs(np.concatenate(found) - case.logits).max() < WITHIN
    pipeline = open_pipeline(stages, context=len(case.ids), streams=2)
    assert pipeline.generate([ask(0, case.prompt.tolist(), ANSWER)])[0] == case.tokens.tolist()
