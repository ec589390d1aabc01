"""A service of two OpenVINO stages whose space was planned for two: more are at work, and nobody notices."""

from __future__ import annotations

import json
import os
import signal
import threading
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.commands.served import complete, metric, post, said, serving, until
from tests.compiler.builds import build
from tests.models import write_tiny_gguf

pytestmark = pytest.mark.system

CONTEXT, STREAMS, CLIENTS = 512, 2, 7
LONG: dict[str, Any] = {"logit_bias": {"0": -100, "2": -100}}  # nothing but its length ends it
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 5, "presence_penalty": 0.3, **LONG}


@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "a stage killed"])
def test_more_than_were_planned_for_get_the_same_answers(tmp_path: Path, killed: bool) -> None:
    """Each wants seven eighths of a context, so they cannot all go on at once: some are put back."""
    build(
        write_tiny_gguf(tmp_path / "tiny.gguf", context=CONTEXT),
        tmp_path / "dist",
        backend="openvino",
        nodes="2",
        stages=2,
        context=CONTEXT,
        streams=STREAMS,
    )
    with serving(tmp_path / "dist" / "manifest.toml", "--port", "0") as served:
        url = served.ready()
        alone = [said(complete(url, "the and of" + " to" * number, 450, **DRAWN)) for number in range(CLIENTS)]
        answers = [""] * CLIENTS

        def ask(number: int) -> None:
            answers[number] = said(complete(url, "the and of" + " to" * number, 450, **DRAWN))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(CLIENTS)]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, metric(url, "requests_running"))
            if killed and most > STREAMS:
                os.kill(served.children()["stage host-1"], signal.SIGKILL)
                killed = False
        assert most > STREAMS
        assert answers == alone
        assert metric(url, "put_backs_total") > 0


def test_who_hangs_up_leaves_nothing_behind(tmp_path: Path) -> None:
    build(
        write_tiny_gguf(tmp_path / "tiny.gguf", context=CONTEXT),
        tmp_path / "dist",
        backend="openvino",
        nodes="1",
        context=CONTEXT,
        streams=1,
    )
    with serving(tmp_path / "dist" / "manifest.toml", "--port", "0") as served:
        url = served.ready()
        body = {"prompt": "the and of to", "max_tokens": 500, "stream": True, **DRAWN}
        for _ in range(9):  # more than have space together
            request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode())
            with urllib.request.urlopen(request, timeout=60) as answer:
                answer.readline()
        until(lambda: not metric(url, "requests_running"))  # nobody is computed for who has hung up
        assert said(complete(url, "the and of to", 400, **DRAWN))


@pytest.mark.parametrize(("backend", "at_work"), [("onnxruntime", {3}), ("openvino", {4, 5})], ids=["slots", "blocks"])
def test_context_and_streams_divide_space_anew(tmp_path: Path, backend: str, at_work: set[int]) -> None:
    """Planned for two of 512, and served to three of 256; where sequences share that, five of ten tokens are let in, or
    four where they have grown before the fifth comes.
    """
    build(
        write_tiny_gguf(tmp_path / "tiny.gguf", context=CONTEXT),
        tmp_path / "dist",
        backend=backend,
        nodes="2",
        stages=2,
        context=CONTEXT,
        streams=STREAMS,
    )
    words = ("--port", "0", "--context", "256", "--streams", "3")
    with serving(tmp_path / "dist" / "manifest.toml", *words) as served:
        url = served.ready()

        def ask(tokens: int, most: int) -> tuple[int, dict[str, Any]]:
            return post(url, "/v1/completions", {"prompt": [7] * tokens, "max_tokens": most, "temperature": 0, **LONG})

        status, answer = ask(250, 400)
        assert status == 200
        assert (answer["choices"][0]["finish_reason"], answer["usage"]["total_tokens"]) == ("length", 256)
        status, answer = ask(256, 1)
        assert (status, answer["error"]["code"]) == (400, "context_length_exceeded"), "at once, and for ever"
        answers: list[tuple[int, dict[str, Any]]] = []
        threads = [threading.Thread(target=lambda: answers.append(ask(10, 246))) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        most = 0
        while any(thread.is_alive() for thread in threads):
            most = max(most, metric(url, "requests_running"))
        assert most in at_work
        assert [answer["choices"][0]["finish_reason"] for _, answer in answers] == ["length"] * CLIENTS
        assert metric(url, "requests_running") == 0
