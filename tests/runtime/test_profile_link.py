"""Links are measured between two real processes on loopback, over the transport that serves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ruvrun.bundle import NODE_NAME, SECRET_KEY
from ruvrun.costs import CostTable, LinkCost, Provenance, dump_costs, load_costs
from ruvrun.errors import InputError, MachineError, RuvError, UnreachableError, UsageError
from ruvrun.manifest import Address, HeadAddress, Nodes, dump_manifest, dump_nodes, identify, load_nodes
from ruvrun.ports import free_ports
from ruvrun.profile import link
from ruvrun.profile.ends import End, end_of, peer_of
from ruvrun.profile.link import answer, measure_link
from ruvrun.transport import Came, Down, Event
from ruvrun.transport.keys import KeyPair, make_keypair, write_keys
from ruvrun.transport.zeromq import ZeroMq
from tests.runtime.fake_ring import fake_manifest

NAMES = ("a", "b", "c")
RUVRUN = [sys.executable, "-m", "ruvrun", "profile"]


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    """A build of three nodes on this machine, as copied to each: manifest, addresses, and a key of its own."""
    keys = {name: make_keypair() for name in NAMES}
    manifest = fake_manifest(NAMES)
    nodes = [msgspec.structs.replace(node, public_key=keys[node.name].public) for node in manifest.node]
    manifest = msgspec.structs.replace(
        manifest, node=nodes, id=identify(manifest.program, manifest.stage, manifest.pipeline)
    )
    ports = dict(zip(NAMES, free_ports(len(NAMES)), strict=True))
    where = [Address(name=name, address="127.0.0.1", port=port) for name, port in ports.items()]
    for name in NAMES:
        (tmp_path / name / "node").mkdir(parents=True)
        (tmp_path / name / NODE_NAME).write_text(name)
        (tmp_path / name / "manifest.toml").write_bytes(dump_manifest(manifest))
        (tmp_path / name / "node" / "nodes.toml").write_bytes(dump_nodes(Nodes(node=where, head=HeadAddress())))
        write_keys(tmp_path / name / SECRET_KEY, keys[name])
    return tmp_path


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few frames: what is tested here is who talks to whom, and that something was counted."""
    for name, value in (("PINGS", 5), ("BATCHES", 2), ("BATCH_SECONDS", 0.01), ("SILENCE", 2.0)):
        monkeypatch.setattr(link, name, value)


@pytest.fixture
def answering(bundles: Path) -> Iterator[subprocess.Popen[str]]:
    """Node ``b``, which waits to be measured."""
    argv = [*RUVRUN, str(bundles / "b"), "--answer"]
    with subprocess.Popen(argv, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        assert "b answers at port" in said[-1], said
        yield process
        process.kill()


def end(bundles: Path, name: str = "a") -> End:
    return end_of(bundles / name, None)


def test_both_directions_are_measured_and_the_other_end_ends(bundles, answering, quick) -> None:
    rows = measure_link(end(bundles), "b")
    assert [(row.sender, row.receiver) for row in rows] == [("a", "b"), ("b", "a")]
    for row in rows:
        assert 0 < row.latency_ms < 1000
        assert 1e6 < row.bytes_per_s < 1e12
        assert row.spread >= 0
    assert answering.communicate(timeout=20)[1] == "measured by a\n"
    assert answering.returncode == 0


def test_what_is_measured_is_in_the_cost_table_beside_what_was(bundles, answering, tmp_path) -> None:
    """As a person does it, on two machines."""
    costs = tmp_path / "costs.toml"
    source = Provenance(machine="m", cpu="c", software="s", date="d")
    before = [
        LinkCost(sender=sender, receiver=receiver, latency_ms=99.0, bytes_per_s=1.0, source=0)
        for sender, receiver in (("a", "b"), ("b", "c"))
    ]
    costs.write_bytes(dump_costs(CostTable(provenance=[source], link=before)))
    argv = [*RUVRUN, str(bundles / "a"), "--peer", "b", "-o", str(costs), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    table = load_costs(costs)
    by_ends = {(row.sender, row.receiver): row for row in table.link}
    link, other = by_ends["a", "b"], by_ends["b", "c"]
    assert (other.latency_ms, table.provenance[other.source]) == (99.0, source)
    assert 0 < link.latency_ms < 99.0
    assert table.provenance[link.source].software.startswith("ruvrun ")
    assert [(row["sender"], row["receiver"]) for row in json.loads(done.stdout)["links"]] == [("a", "b"), ("b", "a")]


def test_errors_leave_with_their_code(bundles, tmp_path) -> None:
    argv = [*RUVRUN, str(bundles / "a"), "--peer", "b", "-o", str(tmp_path / "costs.toml"), "--json"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 6
    assert json.loads(done.stdout)["error"]["ref"] == "peer-refused"
    assert not (tmp_path / "costs.toml").exists()


def test_it_waits_for_the_next_one_when_a_peer_goes_without_a_word(bundles, answering, quick) -> None:
    first = end(bundles, "c").transport
    first.connect("b", "127.0.0.1", end(bundles).endpoints.nodes["b"].port)
    first.receive(5.0)
    first.close()
    assert measure_link(end(bundles), f"127.0.0.1:{end(bundles).endpoints.nodes['b'].port}")[0].receiver == "b"


def test_a_last_word_that_is_lost_with_the_link_is_not_missed(bundles, answering, quick, monkeypatch) -> None:
    """That the link is gone may be known before what came on it was read."""
    original = ZeroMq.receive
    said = []

    def receive(self: ZeroMq, timeout: float | None) -> list[Event]:
        events = original(self, timeout)
        last = [event for event in events if isinstance(event, Came) and bytes(event.parts[0]).endswith(b"bye")]
        said.extend(last)
        return [Down("b", "the connection was lost")] if last or said else events

    monkeypatch.setattr(ZeroMq, "receive", receive)
    assert len(measure_link(end(bundles), "b")) == 2


def test_ctrl_c_ends_it(bundles, answering) -> None:
    answering.send_signal(signal.SIGINT)
    assert answering.wait(20) != 0


def failure(bundles: Path, peer: str = "b") -> RuvError:
    with pytest.raises(RuvError) as caught:
        measure_link(end(bundles), peer)
    return caught.value


def test_nobody_answers(bundles) -> None:
    error = failure(bundles)
    assert (error.ref, error.exit_code) == ("peer-refused", 6)
    assert error.hint == "run `ruvrun profile DIR --answer` on b first"


def test_what_answers_is_no_node(bundles, quick) -> None:
    with socket.create_server(("127.0.0.1", end(bundles).endpoints.nodes["b"].port)):
        assert failure(bundles).ref == "peer-silent"


def test_a_node_that_serves_does_not_answer(bundles, quick) -> None:
    """It ignores what comes before Hello; so does this end with what is no measurement."""
    other = end(bundles, "b")
    transport = other.transport
    transport.bind("127.0.0.1", other.endpoints.nodes["b"].port)
    error = failure(bundles)
    transport.close()
    assert error.ref == "peer-silent"
    assert error.hint == "run `ruvrun profile DIR --answer` on b"


def test_a_key_that_the_peer_does_not_know(bundles, quick) -> None:
    stranger = make_keypair()
    admitted = {node.name: node.public_key for node in end(bundles).manifest.node if node.name != "a"}
    admitted["a"] = stranger.public
    keys = (bundles / "b" / SECRET_KEY).read_text().split()
    transport = ZeroMq(KeyPair(*keys), admitted)
    transport.bind("127.0.0.1", end(bundles).endpoints.nodes["b"].port)
    error = failure(bundles)
    transport.close()
    assert (error.ref, error.exit_code) == ("peer-key-unknown", 6)


@pytest.mark.parametrize(
    ("address", "wanted"), [("no-such-host.invalid", "peer-name-unknown"), ("192.0.2.1", "peer-timed-out")]
)
def test_a_host_that_is_not_there(bundles, monkeypatch, address, wanted) -> None:
    def fail(*args: object, **options: object) -> None:
        raise socket.gaierror(-2, "unknown") if wanted == "peer-name-unknown" else TimeoutError

    where = "getaddrinfo" if wanted == "peer-name-unknown" else "create_connection"
    path = bundles / "a" / "node" / "nodes.toml"
    nodes = load_nodes(path)
    changed = [msgspec.structs.replace(one, address=address) if one.name == "b" else one for one in nodes.node]
    path.write_bytes(dump_nodes(Nodes(node=changed)))
    monkeypatch.setattr(socket, where, fail)
    assert failure(bundles).ref == wanted
    assert failure(bundles, address).ref == wanted


def test_who_is_meant(bundles) -> None:
    here = end(bundles)
    port = here.endpoints.nodes["b"].port
    assert peer_of(here, "b") == ("b", here.endpoints.nodes["b"])
    assert peer_of(here, f"127.0.0.1:{port}")[0] == "b"
    assert peer_of(here, "b:7071")[1].port == 7071
    for named, ref in (
        ("127.0.0.1", "peer-unknown"), ("bb", "peer-unknown"), ("a", "peer-is-self"), ("b:x", "peer-wrong"),
        ("b:0", "peer-wrong"), ("::1", "peer-unknown"),
    ):  # fmt: skip
        with pytest.raises(UsageError) as caught:
            peer_of(here, named)
        assert caught.value.ref == ref, named
    assert "did you mean 'b'?" in str(_told(here, "bb"))


def _told(here: End, named: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        peer_of(here, named)
    return caught.value


def test_which_end_this_is(bundles, tmp_path) -> None:
    with pytest.raises(UsageError, match="no node 'd'"):
        end_of(bundles / "a", "d")
    with pytest.raises(InputError, match="no bundle of b"):
        end_of(bundles / "a", "b")
    (tmp_path / "probe").mkdir()
    with pytest.raises(InputError, match="between two nodes of a build") as caught:
        end_of(tmp_path / "probe", None)
    assert caught.value.ref == "file-missing"


def test_a_port_that_is_taken(bundles) -> None:
    here = end(bundles, "b")
    with (
        socket.create_server(("127.0.0.1", here.endpoints.nodes["b"].port)),
        pytest.raises(MachineError, match="it is taken"),
    ):
        answer(here, lambda _: None)


def test_a_peer_that_goes_while_it_is_measured(bundles, answering, quick, monkeypatch) -> None:
    monkeypatch.setattr(link, "PINGS", 1)
    original = link._Caller.rates

    def gone(self: object, *args: object) -> list[float]:
        answering.kill()
        answering.wait()
        return original(self, *args)  # type: ignore[arg-type] # passed on as it came

    monkeypatch.setattr(link._Caller, "rates", gone)
    with pytest.raises(UnreachableError) as caught:
        measure_link(end(bundles), "b")
    assert caught.value.ref == "peer-silent"
