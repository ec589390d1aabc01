"""The whole thing, small: a random decoder is built into two stages, served by real processes, and mistreated."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from ruvrun.engine import Request
from ruvrun.frames import Sampling
from ruvrun.manifest import load_manifest
from ruvrun.pipeline import open_local
from ruvrun.ports import free_ports
from ruvrun.tokenizer import Tokenizer
from tests.commands.served import Served, await_status, command, complete, get, has_ended, metric, said, serving, until
from tests.models import write_tiny_gguf

PROMPT = "the and of to"
PROBLEMS = ("onnx", "onnx_ir", "torch", "gguf", "ruvcompile", "optimum", "transformers")


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two stages on this machine."""
    directory = tmp_path_factory.mktemp("build")
    model = write_tiny_gguf(directory / "tiny.gguf", context=2048)
    out = directory / "dist"
    built = command(
        "ruvcompile", "build", model, "--target", "host", "--nodes", 2, "--stages", 2,
        "--backend", "onnxruntime", "--streams", 4, "--context", 2048, "-o", out, "-q",
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return out / "manifest.toml"


@pytest.fixture(scope="module")
def text(manifest: Path) -> str:
    """What the model says to PROMPT, computed in this process."""
    tokenizer = Tokenizer(manifest.parent / "bundles" / load_manifest(manifest).head.node / "node" / "head")
    eos = frozenset(load_manifest(manifest).program.eos)
    request = Request(1, tuple(tokenizer.encode(PROMPT)), 24, Sampling(0.0, 1.0, 0), eos)
    tokens = open_local(manifest).generate([request])[1]
    return tokenizer.decode([token for token in tokens if token not in eos])


def test_it_answers_what_the_model_says_and_loads_no_compiler(manifest: Path, text: str) -> None:
    with serving(manifest, "--port", "0", PYTHONPROFILEIMPORTTIME="1") as served:
        url = served.ready()
        status, health = get(url, "/health")
        assert status == 200
        assert health["id"] == load_manifest(manifest).id
        assert [node["state"] for node in health["nodes"]] == ["ready", "ready"]
        assert sorted(served.children()) == ["head", "stage host-0", "stage host-1"]
        answers = []
        threads = [threading.Thread(target=lambda: answers.append(complete(url, PROMPT))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [said(answer) for answer in answers] == [text] * 4
        assert answers[0][1]["usage"]["completion_tokens"] > 0
        assert command("ruvrun", "status", url, "--check").returncode == 0
        asked = command("ruvrun", "run", "--url", url, "--prompt", PROMPT, "--max-tokens", 24)
        assert asked.stdout == text + "\n"
        assert served.end() == 0
    imported = {line.rsplit("|", 1)[1].strip() for line in served.err if line.startswith("import time:")}
    assert "ruvrun.stage" in imported
    assert "onnxruntime" in imported
    assert {name for name in imported if name.split(".")[0] in PROBLEMS} == set()


def test_a_killed_stage_costs_its_users_a_pause(manifest: Path) -> None:
    """Six answers, two of which wait for a slot, are longer than a pipeline that dies in the middle of them."""
    with serving(manifest, "--port", "0") as served:
        url = served.ready()
        before = served.children()
        long: dict[str, Any] = {"seed": 1, "temperature": 1.0, "stop": ["\x00"]}
        undisturbed = said(complete(url, PROMPT, 2000, **long))
        answers: list[Any] = []
        threads = [
            threading.Thread(target=lambda: answers.append(complete(url, PROMPT, 2000, **long))) for _ in range(6)
        ]
        for thread in threads:
            thread.start()
        until(lambda: (metric(url, "requests_running"), metric(url, "requests_waiting")) == (4, 2) or answers)
        assert not answers, "the answers were too short to be interrupted"
        os.kill(before["stage host-1"], signal.SIGKILL)
        for thread in threads:
            thread.join(60)
        assert [said(answer) for answer in answers] == [undisturbed] * 6
        await_status(url, "ready")
        after = served.children()
        assert after["stage host-1"] != before["stage host-1"]
        assert (after["stage host-0"], after["head"]) == (before["stage host-0"], before["head"])


def test_who_is_answered_when_it_ends_is_told_that_it_ends(manifest: Path) -> None:
    import urllib.request

    served = Served(manifest, "--port", "0")
    url = served.ready()
    body = {"prompt": PROMPT, "max_tokens": 2000, "temperature": 1, "seed": 1, "stop": ["\x00"], "stream": True}
    request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=60) as answer:
        answer.readline()
        os.kill(served.children()["stage host-1"], signal.SIGSTOP)  # so that the answer cannot be over in time
        assert served.end(signal.SIGTERM) == 0
        *_, last = [line for line in answer if line.startswith(b"data: ")]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "stopping"
    assert not [line for line in served.err if "Traceback" in line], served.err


def test_a_killed_head_comes_back_at_the_same_address_with_the_stages_it_had(manifest: Path, text: str) -> None:
    with serving(manifest, "--port", "0") as served:
        url = served.ready()
        before = served.children()
        os.kill(before["head"], signal.SIGKILL)
        assert served.ready() == url
        assert said(complete(url, PROMPT)) == text
        after = served.children()
        assert {name for name, pid in after.items() if before[name] != pid} == {"head"}


def test_a_stage_that_stands_still_is_lost_like_a_dead_one(manifest: Path, text: str) -> None:
    with serving(manifest, "--port", "0") as served:
        url = served.ready()
        pid = served.children()["stage host-1"]
        os.kill(pid, signal.SIGSTOP)
        answers: list[Any] = []
        asking = threading.Thread(target=lambda: answers.append(complete(url, PROMPT)))
        asking.start()
        until(lambda: get(url, "/health")[0] == 503)
        assert not answers
        os.kill(pid, signal.SIGCONT)
        asking.join(60)
        assert [said(answer) for answer in answers] == [text]
        assert served.children()["stage host-1"] == pid


def test_while_a_stage_is_away_health_is_503_and_names_it(manifest: Path) -> None:
    with serving(manifest, "--port", "0") as served:
        url = served.ready()
        pid = served.children()["stage host-0"]
        os.kill(pid, signal.SIGKILL)
        found: list[tuple[int, dict[str, Any]]] = []

        def away() -> bool:
            found.append(get(url, "/health"))
            return found[-1][0] == 503

        until(away)
        states = {node["node"]: node["state"] for node in found[-1][1]["nodes"]}
        assert states["host-0"] != "ready"
        status, body = complete(url)
        assert status in (200, 503)  # it may be back by now
        if status == 503:
            assert "host-0" in body["error"]["message"]
        await_status(url, "ready")


def copies(manifest: Path, directory: Path) -> list[Path]:
    """Both bundles, copied elsewhere, with ports that are free."""
    head, *ports = free_ports(3)
    found = []
    for name in ("host-0", "host-1"):
        shutil.copytree(manifest.parent / "bundles" / name, directory / name)
        nodes = directory / name / "node" / "nodes.toml"
        text = nodes.read_text().replace("7069", str(head))
        for number, port in enumerate(ports):
            text = text.replace(str(7070 + number), str(port))
        nodes.write_text(text)
        found.append(directory / name / "manifest.toml")
    return found


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_copied_bundles_find_each_other_in_any_order(
    manifest: Path, text: str, tmp_path: Path, order: tuple[int, int]
) -> None:
    bundles = copies(manifest, tmp_path)
    with serving(bundles[order[0]], "--port", "0") as first:
        until(first.children)
        with serving(bundles[order[1]], "--port", "0") as second:
            head = (first, second)[order.index(0)]
            url = head.ready()
            assert said(complete(url, PROMPT)) == text
            assert second.end(signal.SIGTERM) == 0


def test_an_init_system_hears_how_it_is(manifest: Path, tmp_path: Path) -> None:
    """Ready when everything is loaded, alive while it serves, and stopping when it was told to end."""
    heard: list[str] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))

        def listen() -> None:
            while "STOPPING=1" not in heard:
                heard.append(listening.recv(4096).decode())

        init = threading.Thread(target=listen)
        init.start()
        told = {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "600000"}
        with serving(manifest, "--port", "0", **told) as served:
            url = served.ready()
            until(lambda: f"STATUS=ready: {url}" in heard)
            assert served.end(signal.SIGTERM) == 0
        init.join(60)
    assert heard.count("READY=1") == 1
    assert "WATCHDOG=1" in heard
    assert "STOPPING=1" in heard


def test_ctrl_c_and_sigterm_leave_nothing(manifest: Path) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        served = Served(manifest, "--port", "0")
        served.ready()
        assert len(served.children()) == 3
        assert served.end(number) == 0
        assert not [line for line in served.err if "Traceback" in line], served.err


def test_ctrl_c_while_loading_leaves_nothing(manifest: Path) -> None:
    served = Served(manifest, "--port", "0")
    until(served.children)
    assert served.end() == 0
    assert not [line for line in served.err if "Traceback" in line], served.err


def test_when_it_is_killed_its_children_end_too(manifest: Path) -> None:
    served = Served(manifest, "--port", "0")
    served.ready()
    watched = [os.pidfd_open(pid) for pid in served.children().values()]
    assert len(watched) == 3
    served.process.kill()
    assert all(has_ended(pidfd) for pidfd in watched)
    served.end()


def test_a_port_in_use_is_7_and_ends_everything(manifest: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = command("ruvrun", "serve", manifest, "--port", port)
    assert found.returncode == 7
    assert found.stdout == ""
    assert re.search(rf"^error\[port-taken\]: .*{port}", found.stderr, re.MULTILINE)
    assert "Traceback" not in found.stderr


def test_a_flipped_byte_is_5_before_anything_is_loaded(manifest: Path, tmp_path: Path) -> None:
    shutil.copytree(manifest.parent, tmp_path / "dist")
    (weights, *_) = sorted((tmp_path / "dist" / "bundles" / "host-1" / "weights").iterdir())
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1
    weights.unlink()
    weights.write_bytes(data)
    found = command("ruvrun", "serve", tmp_path / "dist" / "manifest.toml", "--port", 0)
    assert found.returncode == 5
    assert "error[bundle-altered]" in found.stderr
    assert "Traceback" not in found.stderr
    assert "joined: host-1" not in found.stderr
    asked = command("ruvrun", "run", tmp_path / "dist" / "manifest.toml", "--prompt", "a", "--json")
    assert asked.returncode == 5
    assert json.loads(asked.stdout)["error"]["ref"] == "bundle-altered"


def test_run_starts_and_stops_what_it_needs(manifest: Path, text: str) -> None:
    found = command("ruvrun", "run", manifest, "--prompt", PROMPT, "--max-tokens", 24, "--json")
    assert found.returncode == 0, found.stderr
    answer = json.loads(found.stdout)
    assert answer["text"] == text
    assert answer["completion_tokens"] == len(answer["tokens"])
    plain = command("ruvrun", "run", manifest, "--prompt", PROMPT, "--max-tokens", 24)
    assert plain.stdout == text + "\n"
    assert command("ruvrun", "run", manifest, "--prompt", "the " * 4000).returncode == 3


def test_bench_measures_every_stage(manifest: Path) -> None:
    found = command("ruvrun", "bench", manifest, "--streams", "1,2", "--prompt-tokens", 8, "--max-tokens", 16, "--json")
    assert found.returncode == 0, found.stderr
    result = json.loads(found.stdout)
    assert [run["streams"] for run in result["runs"]] == [1, 2]
    for run in result["runs"]:
        assert run["tokens"] == 16 * run["streams"]
        assert run["tokens_per_s"] > 0
        assert {stage["node"] for stage in run["stages"]} == {"host-0", "host-1"}
        assert all(stage["measured_ms"] > 0 and stage["peak_rss_bytes"] > 0 for stage in run["stages"])
        assert run["verdict"]
