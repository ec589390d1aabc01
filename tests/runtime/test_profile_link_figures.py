"""What is made of the times of frames: latency one way, and what each direction carries, of a link that is known."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from ruvrun.frames import Buffer
from ruvrun.placement import Endpoint
from ruvrun.profile import link
from ruvrun.profile.link import BODY_BYTES, measure_link
from ruvrun.transport import Came, Event, Peer, Up

REPLIES = {b"ping": (b"pong", 64), b"push": (b"got", 0), b"pull": (b"body", BODY_BYTES), b"done": (b"bye", 0)}


class Wire:
    """A link with its own clock, and the end that answers at once: each way so late, and so many bytes a second."""

    def __init__(self, latency: float, there: float, back: float) -> None:
        self.latency, self.rates = latency, (there, back)
        self.now, self.free = 0.0, [0.0, 0.0]
        self.coming: list[tuple[float, Event]] = [(0.0, Up("b"))]

    def send(self, peer: Peer, parts: Sequence[Buffer]) -> bool:
        word, size = REPLIES[bytes(parts[0]).rpartition(b" ")[2]]
        at = self._carried(self._carried(self.now, 0, sum(len(part) for part in parts)), 1, size)
        self.coming.append((at, Came(peer, [word, bytes(size)])))
        return True

    def receive(self, _timeout: float) -> list[Event]:
        self.coming.sort(key=lambda each: each[0])
        at, event = self.coming.pop(0)
        self.now = max(self.now, at)
        return [event]

    def _carried(self, now: float, way: int, size: int) -> float:
        self.free[way] = max(now, self.free[way]) + size / self.rates[way]
        return self.free[way] + self.latency

    def connect(self, *_: object) -> None: ...

    def close(self, **_: object) -> None: ...


@pytest.mark.parametrize(
    ("latency", "there", "back"), [(4e-3, 50e6, 20e6), (0.1e-3, 120e6, 120e6), (50e-3, 1e6, 5e6), (0.0, 1e9, 1e8)]
)
def test_both_directions_are_what_the_link_is(
    monkeypatch: pytest.MonkeyPatch, latency: float, there: float, back: float
) -> None:
    wire = Wire(latency, there, back)
    monkeypatch.setattr(link, "peer_of", lambda *_: ("b", Endpoint("b.lan", 7070)))
    monkeypatch.setattr(link, "try_port", lambda *_: None)
    clock = SimpleNamespace(perf_counter=lambda: wire.now, monotonic=lambda: wire.now)
    monkeypatch.setattr(link, "time", clock)
    end = SimpleNamespace(node="a", transport=wire)
    found = measure_link(end, "b")  # type: ignore[arg-type] # it needs no more of an end
    for row, sender, receiver, rate in zip(found, "ab", "ba", (there, back), strict=True):
        assert (row.sender, row.receiver) == (sender, receiver)
        assert row.latency_ms == pytest.approx(1e3 * latency, abs=0.1)
        assert row.bytes_per_s == pytest.approx(rate, rel=0.02)
        assert row.spread < 0.05
