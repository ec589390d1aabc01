"""The state table of a link: who may say what, when. No I/O; a session never sees a byte.

A link has two ends. The *caller* connected and speaks first; the *listener* was connected to. ::

    caller                               listener
    IDLE                                 AWAIT_HELLO
      | sends Hello                        | receives Hello
    AWAIT_WELCOME                          |-- it fits: sends Welcome -------> OPEN
      | receives Welcome, it fits: OPEN    |-- it does not: sends Refused ---> REFUSED
      | receives Refused, or a Welcome
      | that does not fit: REFUSED
    OPEN, the caller receives Refused: REFUSED, for it said what may not come
    any state, either end: the connection is gone -> CLOSED, and a new session begins with a new connection

"It fits" means: the same protocol number, the same manifest id, the node that the peer's key belongs to, a role that
the manifest gives this node here, and a version of the software that this bundle can work with. Whatever does not fit
is answered with one sentence that says what to do; other differences of version are shown, not refused, so that a
fleet can be updated one node at a time.

Once a link is open, its two roles decide what travels on it::

    caller -> listener    towards the listener              back to the caller
    head   -> stage       Open, Close, Step, Run, Ask       State, Counters, Failed
    stage  -> stage       Open, Close, Step, Run            -
    stage  -> head        Sampled, Run                      -

A *visitor* only wants to know whether it would be taken in: it is answered like any caller, and its link never opens.

A message that comes before Hello, or after a refusal, is ignored: it is left over from a link that is no more, or from
a peer that does not know yet. Any other message out of place is a fault, and the fault of one of two sides: what we
must not send is a bug here (``LocalLinkError``), what the peer must not send is an error about the peer
(``RemoteLinkError``).
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from ruvrun.errors import IntegrityError
from ruvrun.frames import (
    Ask,
    Close,
    Counters,
    Failed,
    Hello,
    Message,
    Open,
    Refused,
    Run,
    Sampled,
    State,
    Step,
    Welcome,
)

HEAD = "head"
STAGE = "stage"
VISITOR = "visitor"

Kinds = frozenset[type[Message]]


class Phase(enum.Enum):
    """Where a session stands."""

    IDLE = "idle"
    AWAIT_HELLO = "await hello"
    AWAIT_WELCOME = "await welcome"
    OPEN = "open"
    REFUSED = "refused"
    CLOSED = "closed"


_RING: Kinds = frozenset({Open, Close, Step, Run})
_NONE: Kinds = frozenset()
# (caller's role, listener's role): what goes to the listener, what comes back
TRAFFIC: Mapping[tuple[str, str], tuple[Kinds, Kinds]] = {
    (HEAD, STAGE): (_RING | {Ask}, frozenset({State, Counters, Failed})),
    (STAGE, STAGE): (_RING, _NONE),
    (STAGE, HEAD): (frozenset({Sampled, Run}), _NONE),
}


class LocalLinkError(Exception):
    """We tried to send what this link does not carry now: a bug of ours."""


class RemoteLinkError(IntegrityError):
    """The peer sent what this link does not carry now."""

    def __init__(self, what: str) -> None:
        super().__init__("link-fault", what, hint="all nodes must run the same build and version")


@dataclass(frozen=True)
class Self:
    """What this process says of itself on every link.

    ``requires`` are the least versions that peers must have, as a bundle states them; only ``ruvrun`` counts here.
    """

    protocol: int
    manifest: str
    node: str
    role: str
    software: str
    requires: Mapping[str, str] = field(default_factory=dict)


class Session:
    """What both ends have in common: the phase, and what may travel while it is ``OPEN``."""

    def __init__(self, me: Self, peer: str, phase: Phase) -> None:
        self.me = me
        self.peer = peer
        self.phase = phase
        self.why = ""
        self.peer_role = ""
        self.peer_software = ""
        self.sends = _NONE
        self.receives = _NONE

    def sending(self, message: Message) -> None:
        """Check that ``message`` may go now.

        Raises:
            LocalLinkError: it may not.
        """
        if type(message) not in self.sends:
            raise LocalLinkError(f"a {type(message).__name__} to {self.peer} while the link is {self.phase.value}")

    def close(self) -> None:
        """The connection is gone."""
        self._stand(Phase.CLOSED)

    def _stand(self, phase: Phase, why: str = "", *, sends: Kinds = _NONE, receives: Kinds = _NONE) -> None:
        self.phase, self.why = phase, why
        self.sends, self.receives = sends, receives

    def _fault(self, message: Message) -> RemoteLinkError:
        return RemoteLinkError(f"{self.peer} sent a {type(message).__name__} while the link is {self.phase.value}")


class Caller(Session):
    """The end that connected to ``peer``, which takes part as ``peer_role``."""

    def __init__(self, me: Self, peer: str, peer_role: str) -> None:
        super().__init__(me, peer, Phase.IDLE)
        self.peer_role = peer_role

    def hello(self) -> Hello:
        """The first message, once the connection stands.

        Raises:
            LocalLinkError: it was said already.
        """
        if self.phase is not Phase.IDLE:
            raise LocalLinkError(f"a second Hello to {self.peer}")
        self._stand(Phase.AWAIT_WELCOME)
        me = self.me
        return Hello(me.protocol, me.manifest, me.node, me.role, me.software)

    def receive(self, message: Message) -> None:
        """Take a message of the listener.

        Raises:
            RemoteLinkError: it may not come now.
        """
        if type(message) in self.receives:
            return
        match self.phase, message:
            case ((Phase.REFUSED | Phase.CLOSED), _):
                return
            case Phase.AWAIT_WELCOME, Welcome():
                self.peer_software = message.software
                if why := _unfit(self.me, self.peer, message):
                    self._stand(Phase.REFUSED, why)
                else:
                    there, back = TRAFFIC[self.me.role, self.peer_role]
                    self._stand(Phase.OPEN, sends=there, receives=back)
            case ((Phase.AWAIT_WELCOME | Phase.OPEN), Refused()):
                self._stand(Phase.REFUSED, message.why)
            case _:
                raise self._fault(message)


class Listener(Session):
    """The end that was connected to, by the node ``peer`` as its key shows.

    Args:
        me: this process.
        peer: the name that the peer's key has in the manifest.
        expected: the nodes that may call, by the role they call in.
    """

    def __init__(self, me: Self, peer: str, expected: Mapping[str, Collection[str]]) -> None:
        super().__init__(me, peer, Phase.AWAIT_HELLO)
        self._expected = expected

    def receive(self, message: Message) -> Welcome | Refused | None:
        """Take a message of the caller; what is returned is the answer to send.

        Raises:
            RemoteLinkError: it may not come now.
        """
        if type(message) in self.receives:
            return None
        if self.phase is Phase.OPEN:
            raise self._fault(message)
        if self.phase is not Phase.AWAIT_HELLO or not isinstance(message, Hello):
            return None
        self.peer_role, self.peer_software = message.role, message.software
        why = _unfit(self.me, self.peer, message)
        if not why and message.role != VISITOR and self.peer not in self._expected.get(message.role, ()):
            why = f"{self.peer} is not the {message.role} that {self.me.node} has before it in this manifest"
        if why:
            self._stand(Phase.REFUSED, why)
            return Refused(self.me.node, why)
        if message.role == VISITOR:
            return Welcome(self.me.protocol, self.me.manifest, self.me.node, self.me.software)
        there, back = TRAFFIC[message.role, self.me.role]
        self._stand(Phase.OPEN, sends=back, receives=there)
        return Welcome(self.me.protocol, self.me.manifest, self.me.node, self.me.software)


def _unfit(me: Self, peer: str, said: Hello | Welcome) -> str:
    """Why the peer cannot take part, as a sentence; empty if it can."""
    if said.protocol != me.protocol:
        return (
            f"{peer} speaks protocol {said.protocol} (ruvrun {said.software}), {me.node} speaks {me.protocol} "
            f"(ruvrun {me.software}): install the same version on both"
        )
    if said.manifest != me.manifest:
        return (
            f"{peer} has build {said.manifest[:12]}, {me.node} has build {me.manifest[:12]}: "
            "copy the bundles of one build to both"
        )
    if said.node != peer:
        return f"the key of {peer} was used by a node that calls itself {said.node}: give each its own bundle"
    needed = me.requires.get("ruvrun", "")
    if too_old(said.software, needed):
        return f"{peer} runs ruvrun {said.software}, and the bundle of {me.node} requires {needed}: update {peer}"
    return ""


def too_old(version: str, needed: str) -> bool:
    """Whether ``version`` is below ``needed``, number by number; a version without numbers is below any."""
    return _numbers(version) < _numbers(needed)


def _numbers(version: str) -> list[int]:
    # A peer may say anything: so many digits that they are no number are none of a version.
    found = re.match(r"\s*>?=?\s*(\d{1,9}(?:\.\d{1,9})*)", version)
    numbers = [int(part) for part in found.group(1).split(".")] if found else []
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return numbers
