"""The real model in two stages, served: what its processes hold, and what the official client makes of it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import openai
import pytest

from ruvrun.manifest import Manifest, load_manifest
from tests.commands.served import Served, command, serving
from tests.models import smollm2_path

pytestmark = pytest.mark.model

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
# Peak over what a stage's imports take: its weights as kernels pack them, and what a session takes whatever its size.
# Seen: 71 MiB for 31 of weights, 91 for 45 and for 58, 113 for 71; one that holds all 103 takes 160.
MOST, SESSION = 1.4, 45
MIB = 2**20
CONTEXT, STREAMS, WITHIN = 512, 4, 0.10
TOKEN_BYTES = 30 * 2 * 3 * 64 * 4
"""Keys and values of a token: layers, both, heads, size of a head, float32."""


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("smollm2") / "dist"
    built = command(
        "ruvcompile", "build", smollm2_path(), "--target", "host", "--nodes", 2, "--stages", 2, "--quant", "int4",
        "--backend", "onnxruntime", "--context", 256, "--streams", 2, "-o", out, "-q",
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return out / "manifest.toml"


@pytest.fixture(scope="module")
def served(manifest: Path) -> Iterator[Served]:
    with serving(manifest, "--port", "0") as service:
        service.ready()
        yield service


@pytest.fixture(scope="module")
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0)


def model_of(client: openai.OpenAI) -> str:
    return client.models.list().data[0].id


def test_a_stage_holds_its_own_weights_and_no_others(manifest: Path, served: Served) -> None:
    facts = load_manifest(manifest)
    imports = _imports_rss()
    whole = sum(stage.weight_bytes for stage in facts.stage)
    for name, pid in served.children().items():
        if name == "head":
            continue
        number = _stage_of(facts, name.removeprefix("stage "))
        own = facts.stage[number].weight_bytes
        held = _peak_rss(pid) - imports
        assert held < MOST * own + SESSION * MIB, (
            f"{name} holds {held / MIB:.0f} MiB for {own / MIB:.0f} MiB of weights"
        )
        assert held < 1.3 * whole, "the bound would not notice a stage that holds everything"
        mapped = set(re.findall(r"(/\S+/weights/\S+)", Path(f"/proc/{pid}/maps").read_text()))
        assert all(f"/bundles/{name.removeprefix('stage ')}/" in path for path in mapped)


def test_the_official_client(client: openai.OpenAI) -> None:
    model = model_of(client)
    whole = client.chat.completions.create(model=model, messages=QUESTION, temperature=0, max_tokens=24)  # type: ignore[arg-type]  # the client wants its own dicts
    answer = whole.choices[0].message.content
    assert answer is not None
    assert "Paris" in answer
    assert whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens
    stream = client.chat.completions.create(
        model=model,
        messages=QUESTION,
        temperature=0,
        max_tokens=24,
        stream=True,  # type: ignore[arg-type]  # as above
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices]
    assert "".join(pieces) == answer
    assert len([piece for piece in pieces if piece]) > 1
    completed = client.completions.create(model=model, prompt="The capital of France is", temperature=0, max_tokens=3)
    assert "Paris" in completed.choices[0].text
    assert completed.choices[0].finish_reason == "length"
    assert completed.usage is not None
    assert completed.usage.completion_tokens == 3


def test_errors_reach_the_client_as_its_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="another", prompt="x")
    with pytest.raises(openai.BadRequestError, match="256"):
        client.completions.create(model=model_of(client), prompt=" word" * 300)


def test_company_changes_no_answer(client: openai.OpenAI) -> None:
    """Four at a time on two slots, greedy and drawn: each gets what it gets alone."""
    model = model_of(client)
    asked = [("Once upon a time", 0.0, 1), ("The best way to", 0.9, 7), ("def add(a, b):", 0.0, 1), ("In 1969", 0.9, 8)]

    def ask(one: tuple[str, float, int]) -> str:
        prompt, temperature, seed = one
        made = client.completions.create(
            model=model, prompt=prompt, temperature=temperature, top_p=0.9, seed=seed, max_tokens=24
        )
        return made.choices[0].text

    alone = [ask(one) for one in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        assert list(pool.map(ask, asked)) == alone


@pytest.mark.system
@pytest.mark.parametrize(
    ("backend", "shape"),
    [
        ("onnxruntime", ["--stages", 1, "--replicas", 1]),
        ("onnxruntime", ["--cut", "layers.14/mlp/add"]),
        ("openvino", ["--cut", "layers.14/mlp/add"]),
        ("openvino", ["--cut", "layers.29/mlp/add"]),  # the head alone: most of its process is none of its weights
    ],
)
def test_the_memory_of_a_stage_is_what_was_planned(
    backend: str, shape: list[object], manifest: Path, tmp_path: Path
) -> None:
    """The peak of its process when all key/value space has been written, within 10 %. Of another build's costs, so that
    it is a plan alone.
    """
    words = ("--target", "host", "--nodes", 2, *shape, "--backend", backend, "--quant", "int4", "--streams", STREAMS)
    words = (
        *words,
        "--context",
        CONTEXT,
        "--costs",
        manifest.with_name("costs.toml"),
        "-o",
        tmp_path / "dist",
        "--json",
    )
    built = command("ruvcompile", "build", smollm2_path(), *words)
    assert built.returncode == 0, built.stderr
    planned = {stage["node"]: stage for stage in json.loads(built.stdout)["stages"]}
    load = ("--streams", STREAMS, "--prompt-tokens", CONTEXT - 8, "--max-tokens", 8)
    ran = command("ruvrun", "bench", tmp_path / "dist" / "manifest.toml", *load, "--json")
    assert ran.returncode == 0, ran.stderr
    stages = json.loads(ran.stdout)["stages"]
    assert {stage["node"] for stage in stages} == planned.keys()
    space = sum(stage["kv_bytes"] for stage in planned.values())
    assert space >= CONTEXT * STREAMS * TOKEN_BYTES
    for stage in stages:
        expected, peak = planned[stage["node"]]["predicted_rss_bytes"], stage["peak_rss_bytes"]
        told = f"{stage['node']}: {expected / MIB:.0f} MiB planned, {peak / MIB:.0f} MiB at its peak"
        assert abs(expected - peak) <= WITHIN * peak, told


def _stage_of(facts: Manifest, node: str) -> int:
    place = facts.place_of(node)
    assert place is not None
    return place[1].stage


def _peak_rss(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def _imports_rss() -> int:
    """Bytes of a process that has imported what a stage imports, and loaded nothing."""
    code = "import ruvrun.stage, ruvrun.executors.onnxruntime; print(open('/proc/self/status').read())"
    text = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    return int(re.findall(r"VmHWM:\s+(\d+) kB", text)[0]) * 1024
