"""Real networks built in two, three and four stages, and run: what comes out is what comes out of the whole."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from ruvcompile import compile as steps
from ruvcompile.progress import Silent
from ruvrun.manifest import load_manifest
from ruvrun.pipeline import open_local
from tests import light
from tests.compiler.builds import build, check_whole
from tests.graphs import MAGIKA, PP_OCR, SILERO_VAD, Array, assert_equal, model_path

STAGES = (2, 3, 4)
LETTERS = {
    "E": "111 100 110 100 111",
    "H": "101 101 111 101 101",
    "L": "100 100 100 100 111",
    "O": "111 101 101 101 111",
}


def picture(seed: int) -> Array:
    """A coarse pattern: of fine noise a deep network makes much the same every time."""
    coarse = np.random.default_rng(seed).standard_normal((1, 3, 7, 7))
    return np.kron(coarse, np.ones((32, 32))).astype(np.float32)


def check_in_stages(
    model: Path,
    folder: Path,
    cases: list[dict[str, Array]],
    counts: Sequence[int] = STAGES,
    **flags: str | tuple[str, ...],
) -> None:
    """Build ``model`` in 2, 3 and 4 stages (measured once) and hold each against ONNX Runtime on the very file."""
    quiet = onnxruntime.SessionOptions()
    quiet.log_severity_level = 4
    session = onnxruntime.InferenceSession(str(model), quiet, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = [dict(zip(names, session.run(names, arrays), strict=True)) for arrays in cases]
    first = wanted[0][names[0]].astype(np.float64)
    assert np.isfinite(first).all()
    assert np.abs(first - wanted[1][names[0]]).max() > 1e-3, "another input gives another result"
    costs: tuple[str, ...] = ()
    for stages in counts:
        output = folder / f"in-{stages}"
        result = build(model, output, nodes=str(stages), stages=stages, costs=costs, **flags)
        costs = (str(output / "costs.toml"),)
        assert len(result["stages"]) == len(check_whole(output)[1]) == stages
        assert all(stage["graph_nodes"] > 0 for stage in result["stages"])
        pipeline = open_local(output / "manifest.toml")
        for arrays, whole in zip(cases, wanted, strict=True):
            assert_equal(pipeline.run(arrays), whole)


@pytest.mark.parametrize(
    "name", [*light.SMALL, *(pytest.param(each, marks=pytest.mark.system) for each in light.LARGE)]
)
def test_light_networks(tmp_path, name) -> None:
    model = light.write_light(name, tmp_path)
    (port,) = onnxruntime.InferenceSession(str(model)).get_inputs()
    check_in_stages(model, tmp_path, [{port.name: picture(seed)} for seed in (0, 1)])


@pytest.mark.parametrize("name", ["squeezenet", pytest.param("resnet50", marks=pytest.mark.system)])
def test_light_networks_on_openvino(tmp_path, name) -> None:
    model = light.write_light(name, tmp_path)
    (port,) = onnxruntime.InferenceSession(str(model)).get_inputs()
    cases = [{port.name: picture(seed)} for seed in (0, 1)]
    check_in_stages(model, tmp_path, cases, (2,), backend="openvino")
    assert {stage.backend for stage in load_manifest(tmp_path / "in-2" / "manifest.toml").stage} == {"openvino"}


def page(text: str, height: int, width: int) -> Array:
    """Black letters on white paper, as the detector takes it: three channels in -1..1."""
    paper = np.ones((height, width), np.float32)
    at = 12
    for letter in text:
        ink = np.kron([[int(dot) for dot in row] for row in LETTERS[letter].split()], np.ones((4, 4)))
        paper[20 : 20 + ink.shape[0], at : at + ink.shape[1]] -= 2 * ink
        at += ink.shape[1] + 4
    return np.repeat(paper[None, None], 3, axis=1)


@pytest.mark.model
def test_the_detector_at_two_sizes(tmp_path) -> None:
    """Its height and width are open: it is measured at one size and runs at another."""
    pages = [page("HELLO", 96, 160), page("HOLE", 96, 160), page("HELLO", 64, 128)]
    check_in_stages(model_path(PP_OCR), tmp_path, [{"x": each} for each in pages], shape=("x=1x3x96x160",))


@pytest.mark.model
def test_the_detector_on_openvino(tmp_path) -> None:
    """In two stages as in one there; and as ONNX Runtime has it, but for what rounding becomes in a deep network."""
    said = []
    for stages in (1, 2):
        out = tmp_path / f"in-{stages}"
        build(model_path(PP_OCR), out, nodes="2", stages=stages, shape=("x=1x3x96x160",), backend="openvino")
        pipeline = open_local(out / "manifest.toml")
        said.append([pipeline.run({"x": page(text, 96, 160)}) for text in ("HELLO", "HOLE")])
    session = onnxruntime.InferenceSession(str(model_path(PP_OCR)))
    (name,) = (output.name for output in session.get_outputs())
    for one, two, text in zip(*said, ("HELLO", "HOLE"), strict=True):
        assert_equal(two, one)
        (exact,) = session.run([name], {"x": page(text, 96, 160)})
        assert exact.max() > 0.5
        assert np.abs(one[name] - exact).max() < 1e-3
    assert steps.verify(tmp_path / "in-2" / "manifest.toml", None, Silent())["identical"] is True


@pytest.mark.model
def test_the_voice_detector_keeps_its_state_in_the_callers_hands(tmp_path) -> None:
    """What comes out as ``stateN`` goes in as ``state`` with the next piece of sound, in any cut."""
    model = model_path(SILERO_VAD)
    session = onnxruntime.InferenceSession(str(model))
    sound = 0.1 * np.random.default_rng(0).standard_normal((3, 1, 576), np.float32)
    state, cases = np.zeros((2, 1, 128), np.float32), []
    for piece in sound:
        cases.append({"input": piece, "state": state, "sr": np.array(16000, np.int64)})
        state = session.run(["stateN"], cases[-1])[0]
    check_in_stages(model, tmp_path, cases)


@pytest.mark.model
def test_the_classifier_of_files(tmp_path) -> None:
    model = model_path(MAGIKA)
    random = np.random.default_rng(0)
    (port,) = onnxruntime.InferenceSession(str(model)).get_inputs()
    cases = [{port.name: random.integers(low, 257, (2, 2048)).astype(np.int32)} for low in (0, 200)]
    check_in_stages(model, tmp_path, cases)
