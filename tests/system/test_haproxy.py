"""The front of several models and heads, as a build renders it: a real HAProxy before heads that say who they are."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from ruvcompile.render import render_fleet
from tests.nodes import fleet
from tests.system.tools import needing, run

pytestmark = [pytest.mark.system, needing("haproxy", "openssl")]


@contextmanager
def head(name: str, status: int = 200, said: str = "ready") -> Iterator[int]:
    """One whose /health is this, and that answers with its name."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/health":
                self._say({"status": said}, status)
            else:
                self._say({"head": name})

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self._say({"head": name})

        def _say(self, body: dict[str, str], code: int = 200) -> None:
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@dataclass(frozen=True)
class Front:
    """A running HAProxy: its ports with and without TLS, and the certificate that it is to show."""

    tls: int
    plain: int
    certificate: Path

    def asked(self, path: str, body: bytes | None = None) -> Any:
        """What it answers over TLS, from whoever it asked."""
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.trusting())
        )
        return json.load(opener.open(urllib.request.Request(f"https://127.0.0.1:{self.tls}{path}", body), timeout=10))

    def trusting(self) -> ssl.SSLContext:
        """One that trusts nobody but who has that certificate."""
        context = ssl.create_default_context(cafile=str(self.certificate))
        context.check_hostname = False
        return context

    def speaks(self, version: ssl.TLSVersion) -> str:
        """The protocol of HTTP that it chooses in this version of TLS."""
        context = self.trusting()
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2", "http/1.1"])
        with socket.create_connection(("127.0.0.1", self.tls), 10) as plain, context.wrap_socket(plain) as line:
            return str(line.selected_alpn_protocol())


@contextmanager
def front(folder: Path, heads: dict[str, int], *others: int) -> Iterator[Front]:
    """HAProxy with the configurations of builds in one folder, before the head of each model and others of all.

    Its library forbids it nothing.
    """
    (folder / "ruvrun").mkdir()
    words = ("-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ruvrun", "-keyout", "key", "-out", "certificate")
    assert run("openssl", "req", *words, cwd=folder).returncode == 0
    made = Front(free_port(), free_port(), folder / "certificate")
    (folder / "ruvrun.pem").write_text(made.certificate.read_text() + (folder / "key").read_text())
    ours = {
        "/etc/haproxy/ruvrun.pem": str(folder / "ruvrun.pem"), ":443": f"127.0.0.1:{made.tls}",
        ":80\n": f"127.0.0.1:{made.plain}\n", "\nglobal\n": "\nglobal\n    ssl-default-bind-ciphers ALL:@SECLEVEL=0\n",
    }  # fmt: skip
    for model, port in heads.items():
        files = render_fleet(fleet("pi5", model=model), kind="decoder", version="0.1.0", most=4, wheels=False)
        for path, data in files.items():
            if path.startswith("haproxy/") and not (folder / "ruvrun" / Path(path).name).exists():
                text = data.decode().replace("pi5-0.local:8000", f"127.0.0.1:{port}")
                for before, after in ours.items():
                    text = text.replace(before, after)
                if "backend " in text and "frontend " not in text:
                    text += "".join(f"    server other-{each} 127.0.0.1:{each}\n" for each in others)
                (folder / "ruvrun" / Path(path).name).write_text(text)
    done = run("haproxy", "-c", "-f", folder / "ruvrun", cwd=folder)
    assert done.returncode == 0, done.stderr
    process = subprocess.Popen(
        ["haproxy", "-f", str(folder / "ruvrun")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        until = time.monotonic() + 30
        while True:
            try:
                made.asked("/v1/models")
                break
            except OSError:
                assert time.monotonic() < until and process.poll() is None
                time.sleep(0.1)
        yield made
    finally:
        process.terminate()
        process.wait(30)


def test_haproxy_asks_the_head_that_has_the_model(tmp_path: Path) -> None:
    with (
        head("small") as small,
        head("large one") as large,
        front(tmp_path, {"small": small, "large one": large}) as before,
    ):
        names = sorted(path.name for path in (tmp_path / "ruvrun").iterdir())
        assert names == ["00-front.cfg", "large-one.cfg", "small.cfg"]
        assert before.asked("/v1/models") == {"head": "small"}
        for model in ("small", "large one"):
            body = json.dumps({"messages": [{"content": "model"}], "model": model}).encode()
            assert before.asked("/v1/chat/completions", body) == {"head": model}
        assert before.asked("/v2/models/large%20one/infer", b"{}") == {"head": "large one"}
        assert before.asked("/v1/chat/completions", b'{"model": "none"}') == {"head": "small"}


def test_haproxy_asks_every_head_of_a_model_that_serves(tmp_path: Path) -> None:
    """One of which a pipeline is missing does; one that waits for its stages does not, whatever it answers."""
    with (
        head("whole") as whole,
        head("half", 503, "degraded") as half,
        head("waits", 503, "waiting") as waits,
        front(tmp_path, {"small": whole}, half, waits) as before,
    ):
        until = time.monotonic() + 60
        while "waits" in (found := {before.asked("/v1/models")["head"] for _ in range(12)}):
            assert time.monotonic() < until
            time.sleep(0.2)
        assert found == {"whole", "half"}


def test_haproxy_is_spoken_to_in_tls_of_today_alone(tmp_path: Path) -> None:
    """By its certificate, in 1.2 or 1.3, also as HTTP/2. Without TLS it says where to go, and no more."""
    with head("small") as small, front(tmp_path, {"small": small}) as before:
        assert {before.speaks(version) for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)} == {"h2"}
        for version, taken in (("-tls1_1", False), ("-tls1_2", True)):
            words = ("s_client", version, "-cipher", "ALL:@SECLEVEL=0", "-connect", f"127.0.0.1:{before.tls}")
            told = run("openssl", *words, cwd=tmp_path)
            assert ("Verification error: self" in told.stdout and told.returncode == 0) is taken, told.stdout
        line = http.client.HTTPConnection("127.0.0.1", before.plain, timeout=10)
        line.request("POST", "/v1/chat/completions", b'{"model": "small"}')
        answer = line.getresponse()
        assert (answer.status, answer.getheader("Location", "").partition(":")[0]) == (302, "https")
        assert b"head" not in answer.read()
