"""What is known of the stages of a pipeline: their states, since when, and why."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ruvrun.frames import State
from ruvrun.manifest import Placed

READY = "ready"
NO_ANSWER = "no answer yet"
# What the whole is, when not all is ready: the worst there is.
_WORST_FIRST = ("refused", "lost", "waiting", "loading")


@dataclass
class Node:
    """A stage's node. ``since`` is seconds of the wall clock."""

    stage: int
    since: float
    state: str = "waiting"
    why: str = NO_ANSWER


class Health:
    """The states of a pipeline's stages.

    Args:
        stages: the pipeline's, in order.
        clock: seconds since 1970.
    """

    def __init__(self, stages: Sequence[Placed], clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.nodes = {placed.node: Node(placed.stage, clock()) for placed in stages}

    @property
    def ready(self) -> bool:
        """Whether every stage answers."""
        return all(node.state == READY for node in self.nodes.values())

    def note(self, message: State) -> bool:
        """Take a stage's state; False when it is no news."""
        node = self.nodes.get(message.node)
        if node is None or (node.state, node.why) == (message.state, message.why):
            return False
        if node.state != message.state:
            node.since = self._clock()
        node.state, node.why = message.state, message.why
        return True

    def missing(self) -> list[str]:
        """A line for every stage that is not ready."""
        return [
            f"{name} (stage {node.stage}) is {node.state}{f': {node.why}' if node.why else ''}"
            for name, node in self.nodes.items()
            if node.state != READY
        ]

    def body(self, id: str) -> dict[str, Any]:
        """The body of GET /health of the manifest ``id``."""
        states = {node.state for node in self.nodes.values()}
        return {
            "status": next((state for state in _WORST_FIRST if state in states), READY),
            "id": id,
            "nodes": [
                {"node": name, "stage": node.stage, "state": node.state, "since": _utc(node.since), "why": node.why}
                for name, node in self.nodes.items()
            ],
        }


def _utc(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
