"""Whether the other nodes can be reached, and would take this one in: six ways to fail, with six cures.

Name unknown, no route, refused, timed out: the network's. Then a handshake with this node's own key, as a visitor: a
peer that does not know the key ends it, one of another build says so. A visitor disturbs no link that stands.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import ruvrun
from ruvrun import frames
from ruvrun.doctor.finding import Finding, failed, failure, well
from ruvrun.errors import RuvError
from ruvrun.frames import Hello, Refused, Welcome
from ruvrun.pipeline.sockets import open_sockets
from ruvrun.placement import Endpoint, Placement
from ruvrun.session import VISITOR
from ruvrun.transport import Came, Down, Peer, Transport, Up
from ruvrun.transport.reach import Unreached, try_port

PATIENCE = 8.0
_WHY = "a pipeline serves only while each stage can speak with the next, and the head with all"
_WHY_KEY = "nodes let in only whose keys were made with theirs: whoever else could read and alter what passes"
_WHY_BUILD = "stages of two builds put together would compute neither model"
_DELIVER = "copy the bundles of one build to both: ./deliver/deliver.sh"


def peers(placement: Placement) -> Iterator[Finding]:
    """Who must be reached from here: the head reaches every stage, a stage those of its own pipeline."""
    here = set(placement.bundles)
    ours = {place[0] for name in here if (place := placement.manifest.place_of(name))}
    for name, where in placement.endpoints.nodes.items():
        place = placement.manifest.place_of(name)
        if name not in here and place and (placement.head or place[0] in ours):
            yield _look(placement, name, where, "")
    if not placement.head:
        yield _look(placement, placement.manifest.head.node, placement.endpoints.head, " (head)")


def reach(name: str, where: Endpoint, timeout: float = 3.0) -> Finding:
    """Whether a peer's link port can be reached, and if not, in which of the ways that need different cures."""
    target = f"{where.host}:{where.port}"
    match found := try_port(where.host, where.port, timeout):
        case None:
            return well(f"peer {name}", f"{target} answers")
        case Unreached("name unknown"):
            hint = f"getent hosts {where.host}; if that finds nothing, put its IP number into node/nodes.toml"
            return _unreached(name, f"{where.host}: name unknown", hint)
        case Unreached("timed out"):
            hint = f"is it on: ping -c 3 {where.host}; is it its firewall: sudo ufw allow {where.port}/tcp, there"
        case Unreached("refused"):
            hint = f"start `ruvrun serve` on {name} (sudo systemctl restart 'ruvrun@*'), or correct its port"
        case _:
            hint = f"check cable, network and address: ip route get {where.host}"
    detail = f" ({found.detail})" if found.detail else ""
    return _unreached(name, f"{target}: {found.trouble}{detail}", hint)


def _look(placement: Placement, node: str, where: Endpoint, role: str) -> Finding:
    found = reach(f"{node}{role}", where)
    if found.state != "ok":
        return found
    (name,) = placement.bundles
    try:
        transport = open_sockets(placement.manifest, name, placement.bundles[name], placement.endpoints)
    except RuvError as error:
        return failed(f"peer {node}{role}", error, _WHY_KEY)
    with contextlib.closing(transport):
        said = Hello(placement.manifest.protocol, placement.manifest.id, name, VISITOR, ruvrun.__version__)
        return greet(f"{node}{role}", transport, Peer(node), where, said)


def greet(name: str, transport: Transport, peer: Peer, where: Endpoint, said: Hello) -> Finding:
    """Say hello with this node's key, and tell what the peer makes of it."""
    target = f"{where.host}:{where.port}"
    until = time.monotonic() + PATIENCE
    transport.connect(peer.node, where.host, where.port)
    stands = False
    while (left := until - time.monotonic()) > 0:
        for event in transport.receive(left):
            match event:
                case Up():
                    stands = True
                    transport.send(peer, frames.encode(said))
                case Down(refused=True):
                    seen = f"{target}: key unknown, it does not know the key of {said.node}"
                    return _unreached(name, seen, _DELIVER, _WHY_KEY)
                case Came():
                    return _answered(name, target, event)
                case _:
                    pass
    if stands:
        hint = f"on {name}: sudo systemctl restart 'ruvrun@*'"
        return _unreached(name, f"{target}: it takes the key, and says nothing", hint)
    seen = f"{target}: key unknown, what answers there does not hold the key that the manifest has for it"
    return _unreached(name, seen, f"{_DELIVER}; or correct the port in node/nodes.toml", _WHY_KEY)


def _answered(name: str, target: str, came: Came) -> Finding:
    message, _ = frames.decode(came.parts)
    if isinstance(message, Welcome):
        return well(f"peer {name}", f"{target} takes this node in, it runs ruvrun {message.software}")
    why = message.why if isinstance(message, Refused) else f"it said {type(message).__name__}"
    build = "other build: " if "build" in why else ""
    return _unreached(name, f"{target}: {build}{why}", f"{_DELIVER}; it restarts them", _WHY_BUILD)


def _unreached(name: str, seen: str, hint: str, why: str = _WHY) -> Finding:
    return failure(f"peer {name}", seen, why, hint, 6)
