"""The fleet file: what it says, and everything that is wrong with it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ruvcompile.errors import InputError, UsageError
from ruvcompile.fleet import Fleet, FleetNode, Link, Place, Wanted, load_fleet, make_fleet
from ruvcompile.fleet.machines import MOST_NODES

GIB = 2**30
A = "[[node]]\nname='a'\ntarget='host'\n"
B = "[[node]]\nname='b'\ntarget='host'\n"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text("format = 1\n" + text)
    return path


def loaded(tmp_path: Path, text: str) -> Fleet:
    return load_fleet(written(tmp_path, text))


def refusal(tmp_path: Path, text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        loaded(tmp_path, text)
    assert caught.value.exit_code == 3
    assert caught.value.hint
    return caught.value


# Made from flags


def test_a_count_of_host_nodes_is_processes_here() -> None:
    fleet = make_fleet("host", "2")
    assert [(node.name, node.address, node.local) for node in fleet.nodes] == [
        ("host-0", "local", True),
        ("host-1", "local", True),
    ]
    assert fleet.head == "host-0"
    assert fleet.link("host-0", "host-1") is None


def test_a_count_of_other_nodes_is_machines_to_be_named() -> None:
    fleet = make_fleet("pi5", "2")
    assert [(node.name, node.address) for node in fleet.nodes] == [("pi5-0", "pi5-0.local"), ("pi5-1", "pi5-1.local")]
    assert fleet.link("pi5-0", "pi5-1") is None


def test_host_names_are_machines_even_for_the_host_target() -> None:
    fleet = make_fleet("host", "one.lan, two.lan")
    assert [(node.name, node.local) for node in fleet.nodes] == [("one.lan", False), ("two.lan", False)]


@pytest.mark.parametrize("name", ["abc", "10.0.0.5", "pi-0.local", "3d"])
def test_what_may_be_a_host_name_is_one(name: str) -> None:
    assert [(node.name, node.address) for node in make_fleet("pi5", name).nodes] == [(name, name)]


@pytest.mark.parametrize("nodes", [str(MOST_NODES), ",".join(f"pi-{number}" for number in range(MOST_NODES))])
def test_a_fleet_has_a_largest_size(tmp_path: Path, nodes: str) -> None:
    assert len(make_fleet("pi5", nodes).nodes) == MOST_NODES
    many = str(MOST_NODES + 1) if nodes.isdecimal() else f"{nodes},another"
    with pytest.raises(UsageError) as caught:
        make_fleet("pi5", many)
    assert (caught.value.ref, str(MOST_NODES) in str(caught.value.hint)) == ("nodes-invalid", True)
    entries = [f'[[node]]\nname = "pi-{number}"\ntarget = "pi5"\n' for number in range(MOST_NODES + 1)]
    assert len(loaded(tmp_path, "".join(entries[1:])).nodes) == MOST_NODES
    assert refusal(tmp_path, "".join(entries)).ref == "fleet-too-large"


# Read from a file


def test_other_machines_have_to_find_every_node(tmp_path: Path) -> None:
    """A node is ``local`` where all are: others would look for it on themselves."""
    nodes = ['[[node]]\nname = "desk"\ntarget = "host"\n', '[[node]]\nname = "pi"\ntarget = "pi5"\n']
    for alone in nodes:
        loaded(tmp_path, alone).require_addresses()
    with pytest.raises(InputError, match="desk has the address 'local', where pi cannot find it") as caught:
        loaded(tmp_path, "".join(nodes)).require_addresses()
    assert caught.value.ref == "node-local"
    assert 'address = "desk.local"' in str(caught.value)


def test_a_whole_fleet_file(tmp_path: Path) -> None:
    fleet = loaded(
        tmp_path,
        """
        head = "b"
        [[node]]
        name = "a"
        target = "pi5"
        port = 7171
        memory = "8GiB"
        cpus = [0, 1]
        threads = 2
        ssh = "pi@a"
        zone = "lab"
        trust = "ours"
        provides = ["camera", "disk"]
        [[node]]
        name = "b"
        target = "host"
        reserve = "512MiB"
        [[link]]
        bandwidth = "100Mbit"
        latency = "1ms"
        [[link]]
        from = "a"
        to = "b"
        bandwidth = "2Gbit/s"
        [require]
        zone = ["lab", "hall"]
        trust = "ours"
        [[place]]
        match = "/backbone/*"
        on = ["a"]
        [[place]]
        match = "image"
        provides = "camera"
        """,
    )
    assert fleet.head == "b"
    facts = ("lab", "ours", ("camera", "disk"))
    assert fleet.nodes[0] == FleetNode("a", "pi5", "a.local", 7171, 8 * GIB, None, (0, 1), 2, "pi@a", *facts)
    assert fleet.node("b").local
    assert (fleet.node("b").reserve, fleet.node("b").zone, fleet.node("b").provides) == (GIB // 2, "", ())
    assert fleet.link("b", "a") == fleet.link("a", "b") == Link(250e6, 0.2e-3)
    assert fleet.default_link == Link(12.5e6, 1e-3)
    assert fleet.require == Wanted(zone=("lab", "hall"), trust=("ours",))
    assert fleet.places == (Place("/backbone/*", ("a",)), Place("image", (), Wanted(provides=("camera",))))


def test_each_direction_may_have_its_own_link(tmp_path: Path) -> None:
    there = "[[link]]\nfrom='a'\nto='b'\nlatency='1ms'\n"
    back = "[[link]]\nfrom='b'\nto='a'\nlatency='5ms'\n"
    fleet = loaded(tmp_path, A + B + there + back)
    assert (fleet.link("a", "b").latency, fleet.link("b", "a").latency) == (1e-3, 5e-3)


def test_local_nodes_may_name_the_same_port_and_others_may_not(tmp_path: Path) -> None:
    assert len(loaded(tmp_path, A + B).nodes) == 2
    text = (A + B).replace("target='host'", "target='host'\naddress='10.0.0.1'")
    assert "a and b both listen on 10.0.0.1:7070" in str(refusal(tmp_path, text))


@pytest.mark.parametrize(
    ("text", "ref", "says"),
    [
        ("", "fleet-empty", "names no node"),
        ("head = 'x'\n" + A, "head-unknown", "head 'x' is not a node"),
        ("head = ['a']\n" + A, "head-unknown", "head ['a'] is not a node"),
        (A + A, "node-twice", "'a' is there twice"),
        (A + "memroy='8GiB'", "key-unknown", "did you mean 'memory'?"),
        (A + "memory='8 big'", "fleet-wrong", "not a number with a unit"),
        (A + "memory=8", "fleet-wrong", "8 bytes"),
        (A + "memory=[8]", "fleet-wrong", "not a number with a unit"),
        (A + "memory='1GiB'\nreserve='1GiB'", "fleet-wrong", "leaves nothing"),
        (A + "port=99999", "fleet-wrong", "port = 99999"),
        (A + "port='x'", "fleet-wrong", "port = 'x'"),
        (A + "address='pi 0'", "fleet-wrong", "it is a host name or an IP number"),
        (A + "address='pi@pi-0'", "fleet-wrong", "address = 'pi@pi-0'"),
        (A + "address='http://pi-0'", "fleet-wrong", "address = 'http://pi-0'"),
        (A + "ssh='pi @pi-0'", "fleet-wrong", "it is user@host"),
        (A + "ssh='-oProxyCommand=x'", "fleet-wrong", "ssh = '-oProxyCommand=x'"),
        (A + "cpus=[-1]", "fleet-wrong", "cpus"),
        (A + "cpus=[0, 0]", "fleet-wrong", "cpus"),
        (A + "threads=0", "fleet-wrong", "threads = 0"),
        (A + "threads=100000", "fleet-wrong", "threads = 100000"),
        (A + "zone=3", "fleet-wrong", "zone = 3"),
        (A + "zone=['lab']", "fleet-wrong", "zone = ['lab']"),
        (A + "trust=''", "fleet-wrong", "trust = ''"),
        (A + "provides='camera'", "fleet-wrong", "it is a list of texts"),
        (A + "provides=[1]", "fleet-wrong", "provides = [1]"),
        ("[[node]]\nname='a b'\ntarget='host'", "node-name", "needs a name"),
        ("[[node]]\nname='../a'\ntarget='host'", "node-name", "needs a name"),
        ("[[node]]\nname='a'", "node-target", "names no target"),
        ("node = 3", "fleet-wrong", "[[node]]"),
        ("nodes = [", "toml-invalid", "not valid TOML"),
        (A + "[[links]]\nlatency='1ms'", "key-unknown", "did you mean 'link'?"),
        (A + "[[link]]\nfrom='a'\nto='c'", "fleet-node-unknown", "'c' is not a node"),
        (A + "[[link]]\nfrom='a'", "fleet-wrong", "to is missing"),
        (A + "[[link]]\nfrom='a'\nto='a'", "fleet-wrong", "no link to itself"),
        (A + "[[link]]", "fleet-wrong", "link: it says nothing of the link"),
        (A + B + "[[link]]\nfrom='a'\nto='b'", "fleet-wrong", "link a -> b: it says nothing of the link"),
        (A + "[[link]]\nbandwidth='0Gbit'", "fleet-wrong", "more than zero"),
        (A + "[[link]]\nbandwidth='1Gib'", "fleet-wrong", "not a number with a unit"),
        (A + "[[link]]\nbandwidth='1bit'", "fleet-wrong", "'1bit' is less than 8bit/s"),
        (A + "[[link]]\nlatency='9999s'", "fleet-wrong", "more than an hour"),
        (A + "memory='0GiB'", "fleet-wrong", "not more than zero"),
        (A + f"memory={2**62}", "fleet-wrong", "more than any machine has"),
        (A + f"threads={10**30}", "toml-invalid", "more than 64 bits"),
        (A + "[[link]]\nlatency='soon'", "fleet-wrong", "not a number with a unit"),
        (A + "[[link]]\nlatancy='1ms'", "key-unknown", "did you mean 'latency'?"),
        (A + "[[link]]\nlatency='1ms'\n[[link]]\nlatency='2ms'", "link-twice", "the default link is there twice"),
        (A + B + 2 * "[[link]]\nfrom='a'\nto='b'\nlatency='1ms'\n", "link-twice", "link a -> b is there twice"),
        (A + "[require]\nzome='lab'", "key-unknown", "did you mean 'zone'?"),
        (A + "[require]\nmemory='8GiB'", "key-unknown", "'memory'"),
        (A + "[require]\nzone=3", "fleet-wrong", "zone = 3"),
        (A + "[require]\nzone=[]", "fleet-wrong", "zone = []"),
        (A + "[[require]]\nzone='lab'", "fleet-wrong", "require is not a table"),
        (A + "[[place]]\non=['a']", "fleet-wrong", "match is missing"),
        (A + "[[place]]\nmatch=''\non=['a']", "fleet-wrong", "match = ''"),
        (A + "[[place]]\nmatch='/x'", "fleet-wrong", "does not say where"),
        (A + "[[place]]\nmatch='/x'\non=[]", "fleet-wrong", "on = []"),
        (A + "[[place]]\nmatch='/x'\non=['aa']", "fleet-node-unknown", "did you mean 'a'?"),
        (A + "[[place]]\nmacth='/x'\non=['a']", "key-unknown", "did you mean 'match'?"),
        (A + "[place]\nmatch='/x'\non=['a']", "fleet-wrong", "[[place]]"),
    ],
)
def test_a_wrong_fleet_file_is_refused(tmp_path: Path, text: str, ref: str, says: str) -> None:
    error = refusal(tmp_path, text)
    assert error.ref == ref
    assert says in str(error)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    wrong = A + "memory='8 big'\n" + A + "[[link]]\nfrom='a'\nto='c'\n[require]\nzome='lab'\n[[place]]\nmatch='/x'\n"
    told = "\n".join(refusal(tmp_path, "haed = 'a'\n" + wrong).context)
    for says in ("'haed'", "8 big", "there twice", "'c' is not a node", "'zome'", "does not say where"):
        assert says in told


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text("format = 2\n" + A)
    with pytest.raises(InputError) as caught:
        load_fleet(path)
    assert caught.value.ref == "format-unknown"


def test_the_reserve_comes_off() -> None:
    node = FleetNode("a", "host")
    assert node.usable(20 * GIB) == 20 * GIB - int(20 * GIB * 0.15)
    assert node.usable(4 * GIB) == 3 * GIB
    assert node.usable(GIB // 2) == 0
    assert FleetNode("a", "host", reserve=0).usable(GIB) == GIB


# What is asked of a node


def test_one_zone_of_several_is_enough_and_all_that_is_to_be_provided_is_needed() -> None:
    node = FleetNode("a", "host", zone="lab", provides=("camera", "disk"))
    assert not Wanted(zone=("hall", "lab"), provides=("disk",)).unmet(node)
    (unmet,) = Wanted(provides=("camera", "gpu")).unmet(node)
    assert (unmet.fact, unmet.wanted, unmet.has) == ("provides", "camera and gpu", "camera and disk")


def test_a_node_that_says_nothing_does_not_pass() -> None:
    found = Wanted(("lab", "hall"), ("ours",), ("camera",)).unmet(FleetNode("a", "host"))
    assert [(each.fact, each.wanted, each.has) for each in found] == [
        ("zone", "lab or hall", "nothing"),
        ("trust", "ours", "nothing"),
        ("provides", "camera", "nothing"),
    ]


def test_a_place_wants_the_name_and_the_facts() -> None:
    place = Place("/x", on=("a", "b"), wanted=Wanted(zone=("lab",)))
    assert not place.unmet(FleetNode("a", "host", zone="lab"))
    assert [each.fact for each in place.unmet(FleetNode("b", "host"))] == ["zone"]
    assert [each.fact for each in place.unmet(FleetNode("c", "host"))] == ["name", "zone"]
