"""A running head held against what the build has computed itself, and measured over HTTP: over real processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest

from ruvrun.bundle import load_spec
from ruvrun.elements import Array
from ruvrun.manifest import load_manifest
from ruvrun.npz import read_npz, write_npz
from tests.commands.served import Served, command, serving
from tests.compiler.builds import build
from tests.graphs import make_model, tensor, weight
from tests.models import write_tiny_gguf


@pytest.fixture(scope="module", params=["decoder", "graph"])
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "decoder":
        model = write_tiny_gguf(folder / "tiny.gguf")
        build(model, folder / "dist", stages=2, backend="onnxruntime")
    else:
        random = np.random.default_rng(0)
        weights = [weight(name, random.standard_normal((64, 64)) / 8) for name in "ab"]
        nodes = [
            onnx.helper.make_node("MatMul", ["x", "a"], ["y"], name="one"),
            onnx.helper.make_node("MatMul", ["y", "b"], ["z"], name="two"),
        ]
        outputs = [tensor("z", ["rows", 64])]
        onnx.save(make_model(nodes, [tensor("x", ["rows", 64])], outputs, weights), folder / "twice.onnx")
        build(folder / "twice.onnx", folder / "dist", stages=2, shape=("x=4x64",), backend="onnxruntime")
    return folder / "dist"


@pytest.fixture(scope="module")
def service(built: Path) -> Iterator[Served]:
    with serving(built / "manifest.toml", "--port", "0") as served:
        served.ready()
        yield served


def altered(built: Path, folder: Path, change: Callable[[Array], Array]) -> Path:
    """The same build with another record of what comes out at its end."""
    copy = Path(shutil.copytree(built, folder / "altered"))
    manifest = load_manifest(copy / "manifest.toml")
    bundle = copy / "bundles" / manifest.pipeline[0].stages[-1].node
    spec = load_spec(bundle)
    assert spec.golden is not None
    names = {f"{kind}.{port.name}" for kind in ("in", "out") for port in (*spec.inputs, *spec.outputs)}
    stored = read_npz(bundle / spec.golden.file, names)
    changed = {name: change(value) if name.startswith("out.") else value for name, value in stored.items()}
    with (bundle / spec.golden.file).open("wb") as stream:
        write_npz(stream, changed)
    return copy / "manifest.toml"


def test_a_head_answers_what_the_build_answered(service: Served, built: Path) -> None:
    done = command("ruvrun", "run", built / "manifest.toml", "--url", service.url, "--golden", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["id"] == load_manifest(built / "manifest.toml").id
    assert 0 <= told["largest_difference"] < 1e-5


def test_another_answer_is_noticed(service: Served, built: Path, tmp_path: Path) -> None:
    manifest = altered(built, tmp_path, lambda values: values[..., ::-1])
    done = command("ruvrun", "run", manifest, "--url", service.url, "--golden")
    assert (done.returncode, "error[answer-differs]" in done.stderr) == (5, True), done.stderr


def test_a_head_is_measured_over_http(service: Served, built: Path) -> None:
    decoder = load_manifest(built / "manifest.toml").program.kind == "decoder"
    load = ("--prompt-tokens", 8, "--max-tokens", 6) if decoder else ("--golden", "--max-tokens", 6)
    words = ("--url", service.url, "--streams", "1,2", "--repeats", 2, *load)
    done = command("ruvrun", "bench", built / "manifest.toml", *words, "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert [run["streams"] for run in told["runs"]] == [1, 2, 1, 2]
    for run in told["runs"]:
        assert run["tokens" if decoder else "items"] == 6 * run["streams"]
        assert run["tokens_per_s" if decoder else "items_per_s"] > 0
        assert "over HTTP" in run["verdict"]
        if decoder:
            assert 0 < run["ttft_ms"]["p50"] <= run["ttft_ms"]["p95"]


def test_what_cannot_be_asked_is_wrong_usage(built: Path) -> None:
    decoder = load_manifest(built / "manifest.toml").program.kind == "decoder"
    for words in (
        ("run", built / "manifest.toml", "--golden"),
        ("run", "--url", "http://127.0.0.1:9", "--golden"),
        ("run", built / "manifest.toml", "--url", "http://127.0.0.1:9", "--golden", "--prompt", "x"),
        ("bench", "--url", "http://127.0.0.1:9"),
        *([("bench", built / "manifest.toml", "--url", "http://127.0.0.1:9", "--golden")] if decoder else []),
    ):
        done = command("ruvrun", *words)
        assert (done.returncode, done.stderr.count("error[")) == (2, 1), done.stderr
    gone = command("ruvrun", "run", built / "manifest.toml", "--url", "http://127.0.0.1:9", "--golden")
    assert (gone.returncode, "error[head-unreachable]" in gone.stderr) == (6, True)
