"""A headless Chromium under test's hand: it opens one page and says what it is like, over the pipe of its own protocol.

The DevTools protocol over ``--remote-debugging-pipe`` is JSON objects with a NUL behind each, on file descriptors 3 and
4 of the browser; so nothing beyond the browser is needed, neither a driver nor a web socket.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WAIT = 60.0


def installed() -> bool:
    """Whether there is a Chromium to look with."""
    return shutil.which("chromium") is not None


class Browser:
    """One page of a running browser. ``told`` is all that the page and the browser complained of."""

    def __init__(self, sender: int, receiver: int) -> None:
        self._sender, self._receiver = sender, receiver
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.told: list[str] = []
        self.fetched: list[str] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0
        )

    def open(self, page: Path, width: int, *, dark: bool = False, paper: bool = False) -> None:
        """Open a file in a window of ``width`` px, with networking off, and wait until it is there."""
        self.told, self.fetched, self._loaded = [], [], False
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", media="print" if paper else "", features=[scheme])
        self._call("Page.navigate", url=page.as_uri())
        until = time.monotonic() + WAIT
        while not self._loaded:
            self._hear(self._read(until))

    def ask(self, script: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._sender, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + WAIT
        while True:
            answer = self._read(until)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _read(self, until: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            assert time.monotonic() < until, "the browser does not answer"
            data = os.read(self._receiver, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        return message

    def _hear(self, event: dict[str, Any]) -> None:
        method, params = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method in (
            "Runtime.exceptionThrown",
            "Runtime.consoleAPICalled",
            "Log.entryAdded",
            "Network.loadingFailed",
        ):
            self.told.append(json.dumps(params))
        elif method == "Network.requestWillBeSent":
            self.fetched.append(params["request"]["url"])


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser of one's own, with nothing of the user's, that is gone afterwards."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    words = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe"]
    with tempfile.TemporaryDirectory(prefix="browser-") as profile:
        redirected = f'exec "$@" 3<&{to_read} 4>&{from_write}'
        process = subprocess.Popen(
            ["bash", "-c", redirected, "bash", *words, f"--user-data-dir={profile}", "about:blank"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(to_read, from_write),
            env={**os.environ, "HOME": profile},
        )
        os.close(to_read)
        os.close(from_write)
        try:
            yield Browser(to_write, from_read)
        finally:
            os.close(to_write)
            process.terminate()
            process.wait(timeout=WAIT)
            os.close(from_read)
            _until_gone(Path(profile))


def _until_gone(profile: Path) -> None:
    """The browser's helpers write a little longer than it lives."""
    for _ in range(50):
        shutil.rmtree(profile, ignore_errors=True)
        if not profile.exists():
            break
        time.sleep(0.1)
    profile.mkdir(exist_ok=True)
