"""Whether a peer would take this node in, asked of a real stage over a real link."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import ruvrun
from ruvrun.bundle import SECRET_KEY
from ruvrun.doctor import Finding
from ruvrun.doctor import peers as room
from ruvrun.manifest import Manifest, identify
from ruvrun.placement import Endpoint, Endpoints, Placement
from ruvrun.transport.keys import make_keypair, write_keys
from ruvrun.transport.reach import try_port
from tests.runtime.fleets import Fleet, fleet


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Fleet]:
    """Two nodes, of which n1 runs; this one is n0."""
    with fleet(tmp_path, 2) as made:
        made.start("n1")
        at = made.endpoints.nodes["n1"]
        until = time.monotonic() + 30
        while try_port(at.host, at.port) is not None:
            assert time.monotonic() < until, made.said("n1")
        yield made


def look(made: Fleet, manifest: Manifest | None = None, where: Endpoint | None = None) -> Finding:
    """What n0 finds out about n1."""
    nodes = made.endpoints.nodes | ({"n1": where} if where else {})
    endpoints = Endpoints(nodes, made.endpoints.head)
    placement = Placement(
        made.directory / "manifest.toml", manifest or made.manifest, {"n0": made.bundle("n0")}, endpoints, False
    )
    (finding,) = room.peers(placement)
    assert finding.check == "peer n1"
    assert finding.state == "ok" or (finding.why and finding.hint), "why does it matter, and what is there to type?"
    return finding


def with_key(manifest: Manifest, node: str, public: str) -> Manifest:
    nodes = [msgspec.structs.replace(one, public_key=public) if one.name == node else one for one in manifest.node]
    return msgspec.structs.replace(manifest, node=nodes)


def test_a_peer_that_takes_this_node_in_and_is_not_disturbed(running: Fleet) -> None:
    before = running.said("n1")
    found = look(running)
    assert (found.state, found.seen.endswith(f"takes this node in, it runs ruvrun {ruvrun.__version__}")) == (
        "ok",
        True,
    )
    assert look(running).state == "ok"
    assert running.said("n1") == before


def test_a_peer_of_another_build(running: Fleet) -> None:
    program = msgspec.structs.replace(running.manifest.program, vocab=62)
    other = identify(program, running.manifest.stage, running.manifest.pipeline)
    found = look(running, msgspec.structs.replace(running.manifest, program=program, id=other))
    assert (found.state, found.exit_code) == ("fail", 6)
    assert "other build: " in found.seen
    assert other[:12] in found.seen
    assert running.manifest.id[:12] in found.seen
    assert "./deliver/deliver.sh" in str(found.hint)


def test_a_peer_that_does_not_know_this_nodes_key(running: Fleet) -> None:
    keys = make_keypair()
    write_keys(running.bundle("n0") / SECRET_KEY, keys)
    found = look(running, with_key(running.manifest, "n0", keys.public))
    assert (found.state, "key unknown, it does not know the key of n0" in found.seen) == ("fail", True), found


def test_a_peer_that_holds_another_key(running: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "PATIENCE", 2.0)
    found = look(running, with_key(running.manifest, "n1", make_keypair().public))
    assert (found.state, "key unknown, what answers there" in found.seen) == ("fail", True), found


def test_a_peer_that_is_not_there(running: Fleet) -> None:
    process = running.processes["n1"]
    process.kill()
    process.wait()
    found = look(running)
    assert (found.state, "refused" in found.seen) == ("fail", True)
    assert "start `ruvrun serve` on n1" in str(found.hint)


def test_a_name_that_nobody_knows(running: Fleet) -> None:
    found = look(running, where=Endpoint("no such name", 7070))
    assert (found.state, "name unknown" in found.seen) == ("fail", True)
    assert str(found.hint).startswith("getent hosts ")


def test_this_nodes_own_key_may_be_what_is_wrong(running: Fleet) -> None:
    (running.bundle("n0") / SECRET_KEY).unlink()
    found = look(running)
    assert (found.state, found.exit_code) == ("fail", 3)
    assert "no link key" in found.seen
