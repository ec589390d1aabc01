"""The table of ``session.py``, row by row, and the sentences of a refusal."""

from __future__ import annotations

import dataclasses
import itertools
import typing

import pytest

from ruvrun import frames
from ruvrun.session import (
    HEAD,
    STAGE,
    TRAFFIC,
    VISITOR,
    Caller,
    Listener,
    LocalLinkError,
    Phase,
    RemoteLinkError,
    Self,
    too_old,
)

STAGE_1 = Self(1, "a" * 64, "pi-1", STAGE, "0.1.0")
OTHERS = {HEAD: ["pi-0"], STAGE: ["pi-0"]}
SAMPLES: dict[type, frames.Message] = {
    frames.Open: frames.Open(1, 0, 1, frames.Sampling(0.0, 1.0, 0)),
    frames.Close: frames.Close(1, 1, 1),
    frames.Step: frames.Step(1, 1, ()),
    frames.Run: frames.Run(1, 1, 1),
    frames.Sampled: frames.Sampled(1, 1, ()),
    frames.Hello: frames.Hello(1, "a" * 64, "pi-0", HEAD, "0.1.0"),
    frames.Welcome: frames.Welcome(1, "a" * 64, "pi-1", "0.1.0"),
    frames.Refused: frames.Refused("pi-1", "no"),
    frames.State: frames.State("pi-1", "ready", ""),
    frames.Failed: frames.Failed(1, 1, "pi-1", "no"),
    frames.Ask: frames.Ask(False),
    frames.Counters: frames.Counters("pi-1", 0.0, 0.0, 0, 0, 0.0, 0),
}
KINDS = sorted(SAMPLES, key=lambda kind: kind.__name__)
LINKS = sorted(TRAFFIC)


def test_every_message_has_a_sample() -> None:
    assert set(SAMPLES) == set(typing.get_args(frames.Message))


def ends(caller: str, listener: str) -> tuple[Caller, Listener]:
    """The two ends of a link of pi-0 to pi-1, before anything was said."""
    here = dataclasses.replace(STAGE_1, node="pi-0", role=caller)
    there = dataclasses.replace(STAGE_1, role=listener)
    return Caller(here, "pi-1", listener), Listener(there, "pi-0", OTHERS)


def joined(caller: str, listener: str) -> tuple[Caller, Listener]:
    """The same, open."""
    first, second = ends(caller, listener)
    welcome = second.receive(first.hello())
    assert isinstance(welcome, frames.Welcome)
    first.receive(welcome)
    assert (first.phase, second.phase) == (Phase.OPEN, Phase.OPEN)
    return first, second


@pytest.mark.parametrize("link", LINKS)
def test_hello_and_welcome_open_both_ends(link: tuple[str, str]) -> None:
    caller, listener = joined(*link)
    assert listener.peer_role == link[0]
    assert caller.peer_software == listener.peer_software == "0.1.0"


@pytest.mark.parametrize(("link", "kind"), list(itertools.product(LINKS, KINDS)))
def test_an_open_link_carries_its_traffic_and_nothing_else(link: tuple[str, str], kind: type) -> None:
    there, back = TRAFFIC[link]
    message = SAMPLES[kind]
    for sender, receiver, allowed in ((0, 1, kind in there), (1, 0, kind in back)):
        pair = joined(*link)
        if allowed:
            pair[sender].sending(message)
            assert pair[receiver].receive(message) is None
            assert pair[receiver].phase is Phase.OPEN
            continue
        with pytest.raises(LocalLinkError):
            pair[sender].sending(message)
        if kind is frames.Refused and receiver == 0:
            pair[0].receive(message)
            assert (pair[0].phase, pair[0].why) == (Phase.REFUSED, "no")
        else:
            with pytest.raises(RemoteLinkError, match=kind.__name__):
                pair[receiver].receive(message)


@pytest.mark.parametrize("kind", KINDS)
def test_before_hello_everything_is_ignored(kind: type) -> None:
    _, listener = ends(HEAD, STAGE)
    answer = listener.receive(SAMPLES[kind])
    if kind is frames.Hello:
        assert isinstance(answer, frames.Welcome)
    else:
        assert answer is None
        assert listener.phase is Phase.AWAIT_HELLO
    assert listener.peer == "pi-0"


@pytest.mark.parametrize("kind", KINDS)
def test_while_the_caller_waits_only_an_answer_may_come(kind: type) -> None:
    caller, _ = ends(HEAD, STAGE)
    caller.hello()
    with pytest.raises(LocalLinkError):
        caller.sending(SAMPLES[kind])
    if kind in (frames.Welcome, frames.Refused):
        caller.receive(SAMPLES[kind])
        assert caller.phase is (Phase.OPEN if kind is frames.Welcome else Phase.REFUSED)
    else:
        with pytest.raises(RemoteLinkError, match=kind.__name__):
            caller.receive(SAMPLES[kind])


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_may_be_said_before_hello(kind: type) -> None:
    caller, listener = ends(HEAD, STAGE)
    for session in (caller, listener):
        with pytest.raises(LocalLinkError):
            session.sending(SAMPLES[kind])
    with pytest.raises(RemoteLinkError):
        caller.receive(SAMPLES[kind])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phase", [Phase.REFUSED, Phase.CLOSED])
def test_when_it_is_over_nothing_is_heard_or_said(phase: Phase, kind: type) -> None:
    if phase is Phase.CLOSED:
        pair = joined(HEAD, STAGE)
        for session in pair:
            session.close()
    else:
        pair = ends(HEAD, STAGE)
        refused = pair[1].receive(dataclasses_hello(pair[0], manifest="b" * 64))
        assert isinstance(refused, frames.Refused)
        pair[0].receive(refused)
    for session in pair:
        assert session.phase is phase
        assert session.receive(SAMPLES[kind]) is None
        assert session.phase is phase
        with pytest.raises(LocalLinkError):
            session.sending(SAMPLES[kind])


def test_hello_is_said_once() -> None:
    caller, _ = joined(HEAD, STAGE)
    with pytest.raises(LocalLinkError):
        caller.hello()


def dataclasses_hello(caller: Caller, **changed: object) -> frames.Hello:
    """The caller's Hello with something changed on the way."""
    hello = caller.hello()
    fields = {name: changed.get(name, getattr(hello, name)) for name in hello.__struct_fields__}
    return frames.Hello(**fields)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"protocol": 2}, "pi-0 speaks protocol 2 (ruvrun 0.1.0), pi-1 speaks 1 (ruvrun 0.1.0): install the same"),
        ({"manifest": "b" * 64}, "pi-0 has build bbbbbbbbbbbb, pi-1 has build aaaaaaaaaaaa: copy the bundles of one"),
        ({"node": "pi-7"}, "the key of pi-0 was used by a node that calls itself pi-7"),
        ({"role": "observer"}, "pi-0 is not the observer that pi-1 has before it"),
    ],
)
def test_a_listener_refuses_with_one_sentence(changed: dict[str, object], sentence: str) -> None:
    caller, listener = ends(HEAD, STAGE)
    answer = listener.receive(dataclasses_hello(caller, **changed))
    assert isinstance(answer, frames.Refused)
    assert answer.node == "pi-1"
    assert answer.why.startswith(sentence)
    assert "\n" not in answer.why
    assert (listener.phase, listener.why) == (Phase.REFUSED, answer.why)
    caller.receive(answer)
    assert (caller.phase, caller.why) == (Phase.REFUSED, answer.why)


@pytest.mark.parametrize(
    ("changed", "sentence"),
    [
        ({"protocol": 2}, "pi-1 speaks protocol 2"),
        ({"manifest": "b" * 64}, "pi-1 has build bbbbbbbbbbbb"),
        ({"node": "pi-7"}, "the key of pi-1 was used"),
    ],
)
def test_a_caller_refuses_a_welcome_that_does_not_fit(changed: dict[str, object], sentence: str) -> None:
    caller, listener = ends(HEAD, STAGE)
    welcome = listener.receive(caller.hello())
    assert isinstance(welcome, frames.Welcome)
    fields = {name: changed.get(name, getattr(welcome, name)) for name in welcome.__struct_fields__}
    caller.receive(frames.Welcome(**fields))
    assert caller.phase is Phase.REFUSED
    assert caller.why.startswith(sentence)


def test_a_visitor_is_answered_and_opens_nothing() -> None:
    _, listener = ends(HEAD, STAGE)
    said = frames.Hello(1, "a" * 64, "pi-0", VISITOR, "0.1.0")
    for _ in range(2):
        assert isinstance(listener.receive(said), frames.Welcome)
        assert listener.phase is Phase.AWAIT_HELLO
    assert isinstance(listener.receive(frames.Hello(1, "b" * 64, "pi-0", VISITOR, "0.1.0")), frames.Refused)


def test_a_node_that_is_not_the_neighbour_is_refused() -> None:
    caller = Caller(dataclasses.replace(STAGE_1, node="pi-3"), "pi-1", STAGE)
    answer = Listener(STAGE_1, "pi-3", OTHERS).receive(caller.hello())
    assert isinstance(answer, frames.Refused)
    assert answer.why == "pi-3 is not the stage that pi-1 has before it in this manifest"


@pytest.mark.parametrize(("needed", "refused"), [("0.2.0", True), ("0.1.0", False), (">=0.1", False), ("", False)])
def test_a_version_below_what_the_bundle_requires(needed: str, refused: bool) -> None:
    caller, _ = ends(HEAD, STAGE)
    here = dataclasses.replace(STAGE_1, requires={"ruvrun": needed, "protocol": "1"})
    answer = Listener(here, "pi-0", OTHERS).receive(caller.hello())
    if refused:
        assert isinstance(answer, frames.Refused)
        assert answer.why == "pi-0 runs ruvrun 0.1.0, and the bundle of pi-1 requires 0.2.0: update pi-0"
    else:
        assert isinstance(answer, frames.Welcome)


def test_another_version_is_shown_and_not_refused() -> None:
    caller, listener = ends(HEAD, STAGE)
    assert isinstance(listener.receive(dataclasses_hello(caller, software="0.9.1")), frames.Welcome)
    assert listener.peer_software == "0.9.1"


@pytest.mark.parametrize(
    ("version", "needed", "old"),
    [
        ("0.9", "0.10", True),
        ("0.10", "0.9", False),
        ("1", "1.0.0", False),
        ("1.0.0", "1", False),
        ("1.0", "1.0.1", True),
        ("2.0.dev3", "2.0", False),
        ("unknown", "0.1", True),
        ("", "", False),
        ("9" * 5000, "0.1", False),
        ("0." + "9" * 5000, "0.1", False),
    ],
)
def test_versions_are_compared_by_number(version: str, needed: str, old: bool) -> None:
    assert too_old(version, needed) is old
