"""What doctor and status see, on builds and servers made on the spot."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from ruvrun import client, machine
from ruvrun.doctor import examine, to_json
from ruvrun.doctor.peers import reach
from ruvrun.errors import InputError, UnreachableError, UsageError
from ruvrun.manifest import load_manifest
from ruvrun.placement import Endpoint
from ruvrun.ports import free_ports
from ruvrun.status import find_head, is_ready, lines, one_line, serves, status
from tests.runtime.builds import write_build
from tests.runtime.machines import pi


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine on which all is well."""
    return pi(tmp_path / "pi")


def seen(path: Path, node: str | None = None, *, peers: bool = False) -> dict[str, tuple[str, str]]:
    return {one.check: (one.state, one.seen) for one in examine(path, node, peers=peers)}


def test_a_good_build_is_all_right(tmp_path: Path, root: Path) -> None:
    findings = list(examine(write_build(tmp_path), None, peers=False, root=root))
    assert {one.state for one in findings} == {"ok"}
    assert {"python", "memory", "bundle a", "bundle b", "package onnxruntime", "package uvicorn", "disk"} <= {
        one.check for one in findings
    }
    assert to_json(findings)["ok"] is True


def test_a_flipped_byte_and_a_missing_file_are_found(tmp_path: Path) -> None:
    manifest = write_build(tmp_path)
    (tmp_path / "bundles" / "a" / "stage.onnx").write_bytes(b"grapH a")
    (tmp_path / "bundles" / "b" / "stage.onnx").unlink()
    found = list(examine(manifest, None, peers=False, root=tmp_path))
    failed = {one.check: one for one in found if one.state == "fail"}
    assert sorted(failed) == ["bundle a", "bundle b"]
    assert all(one.exit_code == 5 and one.hint for one in failed.values())
    assert to_json(found)["ok"] is False


def test_too_little_memory_is_told_with_the_sum(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "memory_available", lambda: 1 << 20)
    state, text = seen(write_build(tmp_path))["memory"]
    assert state == "fail"
    assert "4 streams x 64 tokens" in text


def test_memory_is_counted_for_the_context_that_is_asked_for(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, ("a",))

    def told(**asked: int) -> str:
        return next(one.seen for one in examine(manifest, None, peers=False, **asked) if one.check == "memory")

    assert " needed for 4 streams x 64 tokens (" in told()
    assert " needed for 9 streams x 16 tokens (" in told(context=16, streams=9)
    with pytest.raises(UsageError, match="--context 65"):
        told(context=65)


def test_who_has_a_port_that_is_taken(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, addresses={"a": "10.0.0.1", "b": "10.0.0.2"})
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = taken.getsockname()[1]
        nodes = tmp_path / "nodes.toml"
        nodes.write_text(nodes.read_text().replace("7071", str(port)))
        assert seen(manifest, "b")["port of b"][0] == "fail"
        assert seen(manifest, "b")["port of b"][1].startswith(f"{port} is taken by process {os.getpid()}: ")
        (other,) = [
            one for one in examine(manifest, "b", peers=False, root=tmp_path) if one.check == "port of b"
        ]  # where nobody may see whose it is
        assert (other.state, other.seen) == ("warn", f"{port} is taken")


@pytest.mark.parametrize("address", ["local", "a.invalid"])
def test_one_node_alone_needs_no_port(tmp_path: Path, address: str) -> None:
    found = seen(write_build(tmp_path, ("a",), addresses={"a": address}))
    assert not [check for check in found if check.startswith("port")]


def test_nothing_to_look_at_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        list(examine(tmp_path / "manifest.toml", None, peers=False))


def test_peers_are_told_apart() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        assert reach("b", Endpoint("127.0.0.1", port)).state == "ok"
    refused = reach("b", Endpoint("127.0.0.1", port))
    assert (refused.state, refused.exit_code) == ("fail", 6)
    assert "refused" in refused.seen


@pytest.mark.parametrize(
    ("where", "error", "told", "line"),
    [
        ("getaddrinfo", socket.gaierror(-2, "unknown"), "name unknown", "getent hosts 127.0.0.1"),
        ("create_connection", TimeoutError(), "timed out", "ping -c 3 127.0.0.1"),
        ("create_connection", OSError(errno.EHOSTUNREACH, "No route to host"), "no route", "ip route get 127.0.0.1"),
        ("create_connection", ConnectionRefusedError(), "refused", "sudo systemctl restart 'ruvrun@*'"),
    ],
)
def test_what_the_network_says_is_told_apart(
    monkeypatch: pytest.MonkeyPatch, where: str, error: OSError, told: str, line: str
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(socket, where, fail)
    found = reach("b", Endpoint("127.0.0.1", 7070))
    assert (found.state, found.exit_code, told in found.seen) == ("fail", 6, True)
    assert line in str(found.hint)
    assert found.why


def test_peers_are_looked_at_only_where_they_are_elsewhere(tmp_path: Path) -> None:
    manifest = write_build(tmp_path)
    assert not [check for check in seen(manifest, peers=True) if check.startswith("peer")]
    assert [check for check in seen(manifest, "b", peers=True) if check.startswith("peer")] == [
        "peer a", "peer a (head)",
    ]  # fmt: skip


def test_a_stage_looks_for_those_of_its_pipeline_and_the_head_for_all(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, ("a", "b", "c", "d"), pipelines=2)
    for node, peers in (("d", ["peer c", "peer a (head)"]), ("a", ["peer b", "peer c", "peer d"])):
        assert [check for check in seen(manifest, node, peers=True) if check.startswith("peer")] == peers


@contextmanager
def answering(body: Any, code: int = 200) -> Iterator[str]:
    """A server that answers every GET with this."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(code)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def health(second: str, id: str = "a" * 64) -> dict[str, Any]:
    states = [("a", "ready", ""), ("b", second, "" if second == "ready" else "no answer")]
    return {
        "status": second,
        "id": id,
        "nodes": [
            {"node": name, "stage": stage, "state": state, "since": "2024-01-01T00:00:00Z", "why": why}
            for stage, (name, state, why) in enumerate(states)
        ],
    }


def test_status_of_a_ready_service() -> None:
    with answering(health("ready")) as url:
        body = status(url)
    assert is_ready(body)
    assert one_line(body) == f"ready: 2 of 2 stages at {url}"


def test_status_names_who_is_missing() -> None:
    with answering(health("lost"), 503) as url:
        body = status(url)
    assert not is_ready(body)
    assert "b lost" in one_line(body)
    assert any("no answer" in line for line in lines(body))


def test_status_of_two_pipelines() -> None:
    """All stages or not is one thing, whether anybody is served another."""
    body = health("lost")
    for number, node in enumerate(body["nodes"]):
        node["pipeline"] = number
    body["status"] = "degraded"
    with answering(body, 503) as url:
        body = status(url)
    assert serves(body)
    assert not is_ready(body)
    assert one_line(body) == f"degraded: 1 of 2 pipelines serve, b lost at {url}"
    assert lines(body)[2].split() == ["pipeline", "stage", "node", "state", "since"]
    assert lines(body)[4].split()[:4] == ["1", "1", "b", "lost"]
    body["nodes"][0]["state"] = "waiting"
    assert not serves(body)
    assert one_line(body).startswith("not ready: a waiting, b lost")


def odd() -> dict[str, Any]:
    body = health("ready")
    body["nodes"][0]["pipeline"] = []
    return body


NOT_OURS = [b"hello", b"[]", b"[" * 100_000, {"status": "ok"}, {"status": "", "id": "", "nodes": 5}, odd()]


@pytest.mark.parametrize("body", NOT_OURS)
def test_who_is_no_head_is_told(body: Any) -> None:
    with answering(body) as url, pytest.raises(UnreachableError) as caught:
        status(url)
    assert caught.value.ref == "not-a-head"


@contextmanager
def saying(raw: bytes) -> Iterator[str]:
    """A listener that says this to the first who connects, whatever it was asked, and hangs up."""

    def answer() -> None:
        connection, _ = listening.accept()
        with connection:
            connection.recv(1 << 16)
            connection.sendall(raw)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join()


SSH = b"SSH-2.0-OpenSSH_9.2\r\n"
CUT = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"


def stream(url: str) -> list[dict[str, Any]]:
    return list(client.complete(url, "/v1/completions", {}))


@pytest.mark.parametrize(
    ("ask", "raw"),
    [(ask, raw) for ask in (client.health, client.models) for raw in (SSH, b"", CUT)] + [(stream, SSH), (stream, b"")],
)
def test_whatever_answers_instead_is_unreachable(ask: Callable[[str], Any], raw: bytes) -> None:
    with saying(raw) as url, pytest.raises(UnreachableError) as caught:
        ask(url)
    assert caught.value.ref == "head-unreachable"
    assert caught.value.context[0]


def test_an_address_with_no_number_for_a_port() -> None:
    with pytest.raises(UsageError, match=r"127\.0\.0\.1:abc"):
        status("http://127.0.0.1:abc")


def test_a_head_that_is_not_there_is_named(tmp_path: Path) -> None:
    manifest = write_build(tmp_path, ("pi-0", "pi-1"), addresses={"pi-0": "127.0.0.1", "pi-1": "127.0.0.1"})
    url, wanted, name = find_head(str(manifest), port=free_ports(1)[0])
    assert wanted == load_manifest(manifest).id
    assert "pi-0" in name
    with pytest.raises(UnreachableError) as caught:
        status(url)
    assert caught.value.message == f"the head at {url} does not answer"


def test_a_path_that_is_not_there_is_a_missing_file() -> None:
    with pytest.raises(InputError) as caught:
        find_head("dist/manifest.toml")
    assert caught.value.ref == "file-missing"
    assert find_head("pi-0:8000")[0] == "http://pi-0:8000"
