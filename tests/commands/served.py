"""A service under test: ``ruvrun serve`` as a user starts it, and everything one may do to it."""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

WAIT = 60.0


class Served:
    """One ``ruvrun serve`` and its children."""

    def __init__(self, manifest: Path, *words: str, **env: str) -> None:
        self.out: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.err: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ruvrun", "serve", str(manifest), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env={**os.environ, **env},
        )
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self._readers = [
            threading.Thread(target=_read, args=(self.process.stdout, self.out.put)),
            threading.Thread(target=_read, args=(self.process.stderr, self.err.append)),
        ]
        for reader in self._readers:
            reader.start()
        self.url = ""

    def ready(self) -> str:
        """Wait for ``ready: URL``; returns the URL."""
        line = self.out.get(timeout=WAIT)
        assert line.startswith("ready: http://"), (line, self.err)
        self.url = line.removeprefix("ready: ").strip()
        return self.url

    def children(self) -> dict[str, int]:
        """Process ids of ``head`` and of ``stage NODE``."""
        found = {}
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                words = child.cmdline()
            except psutil.NoSuchProcess:  # it has just ended
                continue
            if "--role" in words:
                role, node = words[words.index("--role") + 1], words[words.index("--node") + 1]
                found[role if role == "head" else f"stage {node}"] = child.pid
        return found

    def end(self, number: signal.Signals = signal.SIGINT) -> int:
        """End it as Ctrl-C does (the whole foreground group gets the signal), and check that nothing is left."""
        watched = [os.pidfd_open(pid) for pid in self.children().values()] if self.process.poll() is None else []
        if self.process.poll() is None:
            os.killpg(self.process.pid, number)
        code = self.process.wait(10.0)
        for pidfd in watched:
            assert has_ended(pidfd), "a child is left behind"
        for reader in self._readers:
            reader.join(WAIT)
        return code


@contextmanager
def serving(manifest: Path, *words: str, **env: str) -> Iterator[Served]:
    """A service that is ended in any case."""
    served = Served(manifest, *words, **env)
    try:
        yield served
    finally:
        served.end()


def has_ended(pidfd: int) -> bool:
    """Wait for a process's end, whoever its parent is."""
    ready, _, _ = select.select([pidfd], [], [], WAIT)
    os.close(pidfd)
    return bool(ready)


def get(url: str, path: str) -> tuple[int, dict[str, Any]]:
    """Status and body."""
    try:
        with urllib.request.urlopen(url + path, timeout=WAIT) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def metric(url: str, name: str) -> int:
    """A number that the head counts, by its name without ``ruvrun_``."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=WAIT) as response:
        lines = response.read().decode().splitlines()
    return int(float(next(line.split()[-1] for line in lines if line.startswith(f"ruvrun_{name} "))))


def until(what: Callable[[], object]) -> None:
    """Ask again until it is so; what never comes to be fails here."""
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.01)


def await_status(url: str, wanted: str) -> tuple[int, dict[str, Any]]:
    """What /health says once it says ``wanted``; a service that never gets there fails by this deadline."""
    end = time.monotonic() + WAIT
    while (answer := get(url, "/health"))[1]["status"] != wanted:
        assert time.monotonic() < end, answer
        time.sleep(0.05)
    return answer


def post(url: str, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    """Status and body."""
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=WAIT) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def complete(url: str, prompt: str = "the and of to", max_tokens: int = 24, **more: Any) -> tuple[int, dict[str, Any]]:
    """POST /v1/completions, greedy."""
    model = get(url, "/v1/models")[1]["data"][0]["id"]
    body = {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, **more}
    return post(url, "/v1/completions", body)


def said(answer: tuple[int, dict[str, Any]]) -> str:
    """The text of an answer that is one."""
    assert answer[0] == 200, answer
    return str(answer[1]["choices"][0]["text"])


def command(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end."""
    return _run(subprocess.PIPE, name, *words)


def unread(name: str, *words: object) -> subprocess.CompletedProcess[str]:
    """Run a command of ours to its end, whose standard output nobody reads."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        return _run(writing, name, *words)
    finally:
        os.close(writing)


def _run(out: int, name: str, *words: object) -> subprocess.CompletedProcess[str]:
    line: Sequence[str] = [str(Path(sys.executable).with_name(name)), *map(str, words)]
    return subprocess.run(line, stdout=out, stderr=subprocess.PIPE, text=True, timeout=2 * WAIT, check=False)


def _read(stream: IO[str], put: Any) -> None:
    for line in stream:
        put(line.rstrip("\n"))
    stream.close()
