"""A real build as two pipelines: every command takes it, the tokens are the same, and one half may die."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from ruvrun.engine import Request
from ruvrun.frames import Sampling
from ruvrun.machine import allowed
from ruvrun.manifest import Space, load_manifest
from ruvrun.pipeline import open_local
from ruvrun.tokenizer import Tokenizer
from tests.commands.served import WAIT, await_status, command, complete, get, metric, serving, until
from tests.models import write_tiny_gguf

PROMPT = "the and of to"


def build(directory: Path, stages: int, *words: object) -> Path:
    """Two pipelines of so many stages, on this machine."""
    model = write_tiny_gguf(directory / "tiny.gguf", context=1024)
    built = command(
        "ruvcompile", "build", model, "--target", "host", "--nodes", 2 * stages, "--stages", stages, "--replicas", 2,
        "--backend", "onnxruntime", "--streams", 4, "--context", 1024, "-o", directory / "dist", "-q", *words,
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return directory / "dist" / "manifest.toml"


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pipelines of two stages; which node holds which is the plan's to say."""
    return build(tmp_path_factory.mktemp("build"), 2)


@pytest.fixture(scope="module")
def text(manifest: Path) -> str:
    """What the model says to PROMPT in one pipeline, in this process."""
    found = load_manifest(manifest)
    tokenizer = Tokenizer(manifest.parent / "bundles" / found.head.node / "node" / "head")
    request = Request(1, tuple(tokenizer.encode(PROMPT)), 24, Sampling(0.0, 1.0, 0), frozenset(found.program.eos))
    tokens = open_local(manifest).generate([request])[1]
    return tokenizer.decode([token for token in tokens if token not in found.program.eos])


def crowd(url: str, count: int) -> list[tuple[int, dict[str, Any]]]:
    """So many answers to PROMPT, asked at the same time."""
    answers: list[tuple[int, dict[str, Any]]] = []
    threads = [threading.Thread(target=lambda: answers.append(complete(url, PROMPT))) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT)
    return answers


def test_served_as_one_and_on_when_one_half_dies(manifest: Path, text: str) -> None:
    nodes = [placed.node for pipeline in load_manifest(manifest).pipeline for placed in pipeline.stages]
    first, dying = nodes[1], nodes[3]
    with serving(manifest, "--port", "0") as served:
        url = served.ready()
        status, health = get(url, "/health")
        assert (status, health["status"]) == (200, "ready")
        assert [(node["pipeline"], node["stage"], node["node"]) for node in health["nodes"]] == [
            (0, 0, nodes[0]), (0, 1, nodes[1]), (1, 0, nodes[2]), (1, 1, nodes[3]),
        ]  # fmt: skip
        children = served.children()
        assert len(children) == 5
        answers = crowd(url, 6)
        assert [answer[1]["choices"][0]["text"] for answer in answers] == [text] * 6

        for name in (f"stage {first}", f"stage {dying}"):  # so that each pipeline has one of two under way
            os.kill(children[name], signal.SIGSTOP)
        held: list[tuple[int, dict[str, Any]]] = []
        asking = [threading.Thread(target=lambda: held.append(complete(url, PROMPT))) for _ in range(2)]
        for thread in asking:
            thread.start()
        until(lambda: metric(url, "requests_running") == 2)
        stage = manifest.parent / f"bundles/{dying}/stage.onnx"
        stage.rename(stage.with_suffix(".away"))  # it is started again, and shall fail until we have seen what we want
        os.kill(children[f"stage {dying}"], signal.SIGKILL)
        os.kill(children[f"stage {first}"], signal.SIGCONT)
        status, health = await_status(url, "degraded")
        assert status == 503, "not all stages answer"
        assert get(url, "/v2/health/ready")[0] == 200, "requests are served all the same"
        looked = command("ruvrun", "status", url, "--check")
        assert looked.returncode == 6
        assert looked.stdout.startswith("degraded: 1 of 2 pipelines serve, ")
        assert dying in looked.stdout
        assert complete(url, PROMPT)[1]["choices"][0]["text"] == text
        for thread in asking:
            thread.join(WAIT)
        texts = [answer["choices"][0]["text"] for _, answer in held]
        assert texts == [text] * 2, "one was the dead half's, and went on in the other"
        ran = command("ruvrun", "run", "--url", url, "--prompt", PROMPT, "--max-tokens", 24, "--json")
        assert json.loads(ran.stdout)["text"] == text
        stage.with_suffix(".away").rename(stage)
        assert await_status(url, "ready")[0] == 200, "it is started again"
        assert [answer[1]["choices"][0]["text"] for answer in crowd(url, 4)] == [text] * 4


def test_bench_run_and_doctor_take_all_of_it(tmp_path: Path, manifest: Path) -> None:
    manifest = build(tmp_path, 1, "--costs", manifest.parent / "costs.toml")
    assert load_manifest(manifest).space == Space(context=1024, streams=2), "of each pipeline"
    core = min(allowed())
    ran = command(
        "ruvrun", "bench", manifest, "--cpus", f"{core};{core}", "--streams", 4, "--prompt-tokens", 8,
        "--max-tokens", 24, "--json",
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout)
    assert result["tokens"] == 4 * 24
    assert [stage["pipeline"] for stage in result["stages"]] == [0, 1]
    assert {stage["node"] for stage in result["stages"]} == {"host-0", "host-1"}
    assert all(stage["wire_bytes"] for stage in result["stages"]), "both had work"
    (tmp_path / "bench.json").write_text(ran.stdout)
    told = command("ruvcompile", "report", manifest, "--run", tmp_path / "bench.json")
    assert told.returncode == 0, told.stderr
    assert command("ruvrun", "doctor", manifest).returncode == 0
    wrong = command("ruvrun", "bench", manifest, "--cpus", "0", "--json")
    assert json.loads(wrong.stdout)["error"]["ref"] == "cpus-wrong"
    found = load_manifest(manifest)
    ran = command("ruvrun", "run", manifest, "--prompt", PROMPT, "--max-tokens", 24, "--json")
    tokens = json.loads(ran.stdout)["tokens"]
    tokenizer = Tokenizer(manifest.parent / "bundles" / found.head.node / "node" / "head")
    request = Request(1, tuple(tokenizer.encode(PROMPT)), 24, Sampling(0.0, 1.0, 0), frozenset(found.program.eos))
    assert tokens == open_local(manifest).generate([request])[1]
