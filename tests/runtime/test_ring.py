"""The head's ring over links in memory: what each stage is said to do, what comes out, and that it mends itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from ruvrun import frames
from ruvrun.frames import Ask, Counters, Failed, Message, Run, Sampled, State
from ruvrun.manifest import Manifest
from ruvrun.pipeline.links import RETRY, RETRY_REFUSED, RETRY_UNANSWERED, Links, Opened, Received
from ruvrun.pipeline.ring import Ring
from ruvrun.placement import Endpoint, Endpoints
from ruvrun.session import HEAD, STAGE, Self
from ruvrun.transport import Peer
from ruvrun.transport.memory import Wire
from tests.runtime.fake_ring import fake_manifest

NAMES = ["n0", "n1", "n2"]
HEAD_PORT = 100
PORTS = {"n0": 1, "n1": 2, "n2": 3}
ENDPOINTS = Endpoints(
    nodes={name: Endpoint("host", port) for name, port in PORTS.items()}, head=Endpoint("host", HEAD_PORT)
)


class Clock:
    """Seconds that pass when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Far:
    """A stage as the head sees it: links, and whatever a test lets it say."""

    def __init__(self, world: World, node: str, **changed: str) -> None:
        self.world, self.node = world, node
        last = node == NAMES[-1]
        me = dataclasses.replace(Self(1, world.manifest.id, node, STAGE, "0.1.0"), **changed)
        self.transport = world.wire.transport(node)
        self.links = Links(
            self.transport,
            me,
            listen=("host", PORTS[node]),
            calls={"n0": (HEAD, ("host", HEAD_PORT))} if last else {},
            expected={HEAD: ["n0"]},
            clock=world.clock,
        )
        self.links.open()
        self.head: Peer | None = None
        self.got: list[Message] = []

    def turn(self) -> None:
        for happened in self.links.poll(0):
            if isinstance(happened, Opened) and happened.peer.link:
                self.head = happened.peer
            elif isinstance(happened, Received):
                self.got.append(happened.message)

    def say(self, message: Message) -> None:
        assert self.head is not None
        assert self.links.answer(self.head, message)


class World:
    """A head and its stages on one wire, turned until nothing happens any more."""

    def __init__(self) -> None:
        self.wire, self.clock = Wire(), Clock()
        self.manifest: Manifest = fake_manifest(NAMES)
        self.ring = Ring(
            self.manifest, ENDPOINTS, Path("unused"), transport=self.wire.transport("n0"), clock=self.clock
        )
        self.stages: dict[str, Far] = {}
        self.ring.connect()

    def start(self, *names: str, **changed: str) -> None:
        for name in names:
            self.stages[name] = Far(self, name, **changed)

    def end(self, name: str) -> None:
        self.stages.pop(name).links.close()

    def turn(self) -> list[tuple[Message, dict[str, np.ndarray], int]]:
        came: list[tuple[Message, dict[str, np.ndarray], int]] = []
        for _ in range(8):
            came += self.ring.poll(0)  # type: ignore[arg-type] # arrays
            for stage in self.stages.values():
                stage.turn()
        return came

    def states(self) -> list[str]:
        return [state.state for state in self.ring.states().values()]

    def all_ready(self) -> None:
        self.start(*NAMES)
        self.turn()
        for stage in self.stages.values():
            stage.say(State(stage.node, "ready", ""))
        self.turn()
        assert self.ring.ready()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.ring.close()


def test_a_stage_is_what_it_says_once_its_link_is_open(world: World) -> None:
    assert world.states() == ["waiting"] * 3
    world.start("n1")
    changes = [message for message, _, _ in world.turn()]
    assert changes == [State("n1", "waiting", "it has not said yet what it is doing")]
    for state in ("loading", "waiting", "ready"):
        world.stages["n1"].say(State("n1", state, "so"))
        assert world.turn() == [(State("n1", state, "so"), {}, 0)]
    assert world.states() == ["waiting", "ready", "waiting"]
    world.stages["n1"].say(State("n1", "ready", "so"))
    assert world.turn() == [], "no news is not told"
    assert not world.ring.ready()


def test_ready_is_when_all_are(world: World) -> None:
    world.all_ready()
    world.stages["n0"].say(State("n0", "waiting", "it cannot reach n1"))
    world.turn()
    assert not world.ring.ready()


def test_a_stage_speaks_for_itself_only(world: World) -> None:
    world.all_ready()
    world.stages["n0"].say(State("n2", "refused", "a lie"))
    world.turn()
    assert world.states() == ["refused", "ready", "ready"]


def test_the_last_stage_is_not_ready_before_it_reports_here(world: World) -> None:
    """It may still hold a link to a head that is no more."""
    world.wire.cut(HEAD_PORT)
    world.start(*NAMES)
    world.turn()
    for stage in world.stages.values():
        stage.say(State(stage.node, "ready", ""))
    world.turn()
    assert world.states() == ["ready", "ready", "waiting"]
    world.wire.mend(HEAD_PORT)
    changes = world.turn()
    assert changes == [(State("n2", "ready", ""), {}, 0)]
    assert world.ring.ready()


def test_messages_go_in_at_the_first_stage_and_come_out_at_the_last(world: World) -> None:
    world.all_ready()
    world.ring.send(Run(1, 0, 7), {"x": np.arange(3.0)})
    world.turn()
    assert [stage.got for stage in world.stages.values()] == [[Run(1, 0, 7)], [], []]
    world.stages["n2"].links.send("n0", Sampled(1, 0, ((7, (5,)),)))
    world.stages["n2"].links.send("n0", Run(1, 1, 8), {"y": np.arange(2.0)})
    sampled, run = world.turn()
    assert sampled == (Sampled(1, 0, ((7, (5,)),)), {}, 0)
    assert run[0] == Run(1, 1, 8)
    assert run[1]["y"].tolist() == [0, 1]


def test_counters_and_failures_come_from_every_stage(world: World) -> None:
    world.all_ready()
    world.ring.ask(reset=True)
    world.turn()
    assert all(stage.got == [frames.Ask(True)] for stage in world.stages.values())
    world.stages["n1"].say(Counters("n1", 1.0, 2.0, 3, 4, 5.0, 6))
    world.stages["n0"].say(Failed(1, 2, "n0", "why"))
    assert {type(message) for message, _, _ in world.turn()} == {Counters, Failed}


def test_a_lost_stage_is_named_and_found_again(world: World) -> None:
    world.all_ready()
    world.end("n1")
    assert world.turn() == [(State("n1", "lost", "the connection was lost"), {}, 0)]
    assert not world.ring.ready()
    world.clock.now += RETRY
    assert world.turn() == [], "nobody is there yet"
    world.start("n1")
    world.turn()
    world.stages["n1"].say(State("n1", "ready", ""))
    world.turn()
    assert world.ring.ready()


def test_nothing_sent_to_a_lost_stage_reaches_the_new_one(world: World) -> None:
    world.all_ready()
    world.end("n0")
    world.turn()
    world.ring.send(Run(1, 0, 7), {})
    world.start("n0")
    world.clock.now += RETRY
    world.ring.send(Run(1, 1, 7), {})
    world.turn()
    assert world.stages["n0"].got == []
    world.ring.send(Run(2, 0, 7), {})
    world.turn()
    assert world.stages["n0"].got == [Run(2, 0, 7)]


@pytest.mark.parametrize("times", [1, 5])
def test_a_stage_may_come_and_go_for_ever(world: World, times: int) -> None:
    world.all_ready()
    for _ in range(times):
        world.end("n2")
        world.turn()
        assert world.states() == ["ready", "ready", "lost"]
        world.start("n2")
        world.clock.now += RETRY
        world.turn()
        world.stages["n2"].say(State("n2", "ready", ""))
        world.turn()
        assert world.ring.ready()


def test_a_stage_of_another_build_is_refused_with_a_sentence_until_it_is_updated(world: World) -> None:
    world.start("n0", "n2")
    world.start("n1", manifest="b" * 64)
    world.turn()
    state = world.ring.states()["n1"]
    assert state.state == "refused"
    assert state.why == "n0 has build aaaaaaaaaaaa, n1 has build bbbbbbbbbbbb: copy the bundles of one build to both"
    world.end("n1")
    world.start("n1")
    world.turn()
    assert world.ring.states()["n1"].state == "refused", "it is asked again only after a while"
    world.clock.now += RETRY_REFUSED
    world.turn()
    assert world.ring.states()["n1"].state == "waiting"


def test_why_a_stage_refused_outlives_its_process(world: World) -> None:
    world.all_ready()
    world.stages["n1"].say(State("n1", "refused", "this machine does not compute what the build machine computed"))
    world.turn()
    world.end("n1")
    world.turn()
    assert world.ring.states()["n1"].state == "refused"
    assert world.ring.states()["n1"].why.startswith("this machine")


def test_a_stage_that_does_not_answer_is_called_again(world: World) -> None:
    """Its name may have got a new address meanwhile."""
    called: list[str] = []
    transport = world.ring._links._transport
    connect = transport.connect
    transport.connect = lambda node, host, port: (called.append(node), connect(node, host, port))
    world.clock.now += RETRY_UNANSWERED - 1
    world.turn()
    assert called == []
    world.clock.now += 1
    world.turn()
    assert called == NAMES


def test_a_stage_that_is_there_but_busy_is_waited_for(world: World) -> None:
    """It loads, or computes: a new link would not make it answer sooner."""
    called: list[str] = []
    world.start("n1")
    world.ring.poll(0)
    transport = world.ring._links._transport
    transport.connect = lambda node, *_: called.append(node)
    world.clock.now += RETRY_UNANSWERED
    world.ring.poll(0)
    assert called == ["n0", "n2"]
    world.turn()
    assert "n1" not in called
    assert world.stages["n1"].head is not None


def test_only_the_last_stage_may_report(world: World) -> None:
    world.all_ready()
    other = Links(
        world.wire.transport("n1"),
        Self(1, world.manifest.id, "n1", STAGE, "0.1.0"),
        listen=("host", 50),
        calls={"n0": (HEAD, ("host", HEAD_PORT))},
        expected={},
        clock=world.clock,
    )
    other.open()
    for _ in range(4):
        other.poll(0)
        world.turn()
    assert not other.send("n0", Sampled(1, 0, ((7, (5,)),)))
    assert world.turn() == []


NONSENSE = [
    [b"\xff nonsense"],
    frames.encode(Ask(False)),
    [frames.encode(Sampled(1, 0, ((7, (5,)),)))[0].replace(b"\x91\x05", b"\x91\xff")],  # a token id below zero
]


@pytest.mark.parametrize("said", NONSENSE)
def test_a_peer_that_talks_nonsense_is_not_listened_to_until_it_says_hello_again(
    world: World, said: list[bytes]
) -> None:
    world.all_ready()
    last = world.stages["n2"]
    last.transport.send(Peer("n0"), said)
    last.transport.send(Peer("n0"), frames.encode(Sampled(1, 0, ())))
    assert world.turn() == []
    assert not last.links.is_open("n0"), "it was told"
    world.clock.now += RETRY_REFUSED
    world.turn()
    assert last.links.is_open("n0")
    last.links.send("n0", Sampled(1, 0, ()))
    assert (Sampled(1, 0, ()), {}, 0) in world.turn()


def test_frames_before_hello_are_ignored(world: World) -> None:
    raw = world.wire.transport("n2")
    raw.connect("n0", "host", HEAD_PORT)
    raw.send(Peer("n0"), frames.encode(Sampled(1, 0, ())))
    raw.send(Peer("n0"), [b"\x00"])
    assert world.turn() == []


def test_wake_ends_a_poll(world: World) -> None:
    world.turn()
    world.ring.wake()
    assert world.ring.poll(None) == []
