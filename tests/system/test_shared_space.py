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

from tests.commands.served import complete, metric, said, serving, until
from tests.compiler.builds import build
from tests.models import write_tiny_gguf

pytestmark = pytest.mark.system

CONTEXT, STREAMS, CLIENTS = 512, 2, 7
DRAWN: dict[str, Any] = {"temperature": 1.0, "seed": 5, "presence_penalty": 0.3, "stop": ["\x00"]}


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
